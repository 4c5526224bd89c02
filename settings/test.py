"""For the tests, and for the real processes that tests start.

A test hands its own world to a process through the environment: DATABASE_URL names the test
database itself, TEST_Q_CLUSTER, TEST_AGENTRUNS and TEST_DATABASE_OPTIONS hold JSON objects that are
merged into the settings, TEST_BROKER=redis takes the broker from REDIS_URL.
"""

from __future__ import annotations

import json
import os
from typing import Any

from settings.base import *  # noqa: F403
from settings.base import AGENTRUNS, BASE_DIR, INSTALLED_APPS, MIDDLEWARE, Q_CLUSTER
from settings.database import database


def from_environment(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(os.environ.get(name) or "{}")
    return value


SECRET_KEY = "insecure: for tests only"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Newer Djangos have a setting for what tests do with mail, and warn where it is missing.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

INSTALLED_APPS = [*INSTALLED_APPS, "tests.project"]
# Every page that a test looks at with a browser works under this.
MIDDLEWARE = [*MIDDLEWARE, "tests.project.middleware.strict_policy"]

DATABASES = {
    "default": database(
        os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / '.test.sqlite3'}",
        from_environment("TEST_DATABASE_OPTIONS"),
    ),
}

REDIS_URL = os.environ.get("REDIS_URL", "")

AGENTRUNS = {
    **AGENTRUNS,
    # Long enough for a busy machine: what waits for the end of one of these has a shorter one.
    "LEASE_SECONDS": 20,
    "HEARTBEAT_SECONDS": 0.5,
    "RETRY_BACKOFF_SECONDS": 0.05,
    "RETRY_BACKOFF_MAX_SECONDS": 0.5,
    "RECORD_RETRY_SECONDS": 30,
    "END_GRACE_SECONDS": 30,
    "MAX_STEP_SECONDS": 60,
    **from_environment("TEST_AGENTRUNS"),
}

Q_CLUSTER = {
    **Q_CLUSTER,
    "workers": 1,
    "queue_limit": 1,
    "timeout": 60,
    "retry": 90,
    "poll": 0.05,
    "guard_cycle": 0.1,
    **from_environment("TEST_Q_CLUSTER"),
}
if os.environ.get("TEST_BROKER") == "redis":
    del Q_CLUSTER["orm"]
    Q_CLUSTER["redis"] = REDIS_URL
