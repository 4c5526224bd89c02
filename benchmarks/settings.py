"""For the benchmarks: the project's settings, with prepared statements and a queue of their own.

BENCHMARK_BROKER names what the queue works with: its table in the database, Redis, or RabbitMQ.
"""

from __future__ import annotations

import os

from settings.base import *  # noqa: F403
from settings.base import AGENTRUNS, INSTALLED_APPS, Q_CLUSTER
from settings.database import database

SECRET_KEY = "insecure: for benchmarks only"

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks.project"]

# What DATABASES needs for prepared statements. Without them (a pooler in transaction mode):
# BENCHMARK_PREPARE=0.
PREPARED = {"server_side_binding": True, "prepare_threshold": 1}

DATABASES = {
    "default": database(
        os.environ["DATABASE_URL"],
        PREPARED if os.environ.get("BENCHMARK_PREPARE", "1") == "1" else None,
    )
}

Q_CLUSTER = {**Q_CLUSTER, "name": "agentruns-benchmark", "workers": 1, "queue_limit": 1}
BROKER = os.environ.get("BENCHMARK_BROKER", "table")
if BROKER == "redis":
    del Q_CLUSTER["orm"]
    Q_CLUSTER["redis"] = os.environ["REDIS_URL"]
elif BROKER == "rabbitmq":
    AGENTRUNS = {**AGENTRUNS, "DISPATCHER": "agentruns.dispatch.celery.CeleryDispatcher"}
