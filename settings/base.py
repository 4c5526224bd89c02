"""A sane project around the two apps; `demo` and `test` build on it, and so may yours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from settings.database import database

BASE_DIR = Path(__file__).resolve().parent.parent

# Django refuses to use an empty one: a real installation must set it.
SECRET_KEY = os.environ.get("SECRET_KEY", "")
DEBUG = False
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "").split()

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_q",
    "agentruns",
    "nrllm",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "settings.urls"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}"),
}

# Every setting of `agentruns`, with its unit and default, is in agentruns/conf.py.
AGENTRUNS: dict[str, Any] = {}

# The queue only wakes runs up; what a run is, and whether it is tried again, is its row's business.
Q_CLUSTER: dict[str, Any] = {
    "name": "agentruns",
    # The broker is a table of this database, so nothing else needs to run.
    "orm": "default",
    "workers": 4,
    # What a cluster takes from the broker before a worker is free waits here, not on an idle host.
    "queue_limit": 4,
    # A worker that is still at one task after `timeout` seconds is interrupted. Longer than any
    # run ought to take: what hangs inside one step is noticed much earlier, by its lease.
    "timeout": 3600,
    # The broker delivers a message again after `retry` seconds, counted from the fetch. Above
    # `timeout`, or every long run would be woken while it works (it finds nothing to claim, but a
    # worker is busy finding that out).
    "retry": 3660,
    # A wake-up that failed is done with. The reaper wakes a run that still waits; redelivery by
    # the broker, which counts no attempts when workers die, would only add to it.
    "ack_failures": True,
    # A schedule that could not run in time runs once, not once for every time it missed.
    "catch_up": False,
}
