"""The demonstration: SQLite in a folder of its own, a short lease, and DEBUG for the admin."""

from __future__ import annotations

import os
from pathlib import Path

from settings.base import *  # noqa: F403
from settings.base import AGENTRUNS, BASE_DIR, INSTALLED_APPS, Q_CLUSTER
from settings.database import database

DEMO_DIR = Path(os.environ.get("AGENTRUNS_DEMO_DIR") or BASE_DIR / ".demo")
DEMO_DIR.mkdir(parents=True, exist_ok=True)  # SQLite makes files, not folders

SECRET_KEY = "insecure: for the demonstration only"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [*INSTALLED_APPS, "script.demonstration"]

DATABASES = {"default": database(f"sqlite:///{DEMO_DIR / 'db.sqlite3'}")}

# So short that a person can watch a lease run out, and no shorter than a busy machine pauses a worker.
# Keep a minute for real work.
AGENTRUNS = {
    **AGENTRUNS,
    "LEASE_SECONDS": 10,
    "HEARTBEAT_SECONDS": 1,
    "RETRY_BACKOFF_SECONDS": 1,
    "WAKE_AGAIN_SECONDS": 5,
    "MAX_STEP_SECONDS": 60,
}

Q_CLUSTER = {**Q_CLUSTER, "workers": 2, "queue_limit": 2, "timeout": 120, "retry": 150}
