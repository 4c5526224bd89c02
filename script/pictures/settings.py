"""The demonstration's settings, with a lease as long as in real work."""

from __future__ import annotations

from settings.database import database
from settings.demo import *  # noqa: F403
from settings.demo import DEMO_DIR, INSTALLED_APPS

INSTALLED_APPS = [
    *[app for app in INSTALLED_APPS if app != "script.demonstration"],
    "script.pictures",
]
DATABASES = {"default": database(f"sqlite:///{DEMO_DIR / 'db.sqlite3'}")}
AGENTRUNS = {"DISPATCHER": "script.pictures.world.NobodyIsWoken"}
