"""System checks about django-q2, where it wakes the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Info, Tags, register
from django.db import connections

from .checks import error, is_dictionary, is_number, wakes_by_django_q, warning
from .conf import conf
from .tasks import REAP

# With none of these, django-q2 takes Redis.
BROKERS = frozenset({"broker_class", "iron_mq", "sqs", "orm", "mongo", "redis", "django_redis"})


@register("agentruns")
def check_queue(**_: Any) -> list[CheckMessage]:
    """Judge Q_CLUSTER, where django-q2 wakes the runs."""
    if not uses_django_q():
        return []
    base = getattr(settings, "Q_CLUSTER", {})
    clusters = {"Q_CLUSTER": base}
    for name, changes in base.get("ALT_CLUSTERS", {}).items():
        clusters[f"Q_CLUSTER['ALT_CLUSTERS'][{name!r}]"] = {**base, **changes}
    return [message for where, cluster in clusters.items() for message in judged(where, cluster)]


def uses_django_q() -> bool:
    return wakes_by_django_q() and apps.is_installed("django_q")


def judged(where: str, cluster: dict[str, Any]) -> Iterator[CheckMessage]:
    if all(cluster.get(name) is None for name in BROKERS):
        yield warning(
            "W012",
            f"{where} names no broker{'' if cluster else ', as it is empty or missing'}: django-q2 "
            "would queue in a Redis at localhost:6379.",
            "Set 'orm': 'default' to queue in the database, or 'redis': {...} to say which Redis.",
        )
    # What django-q2 takes where nothing is said.
    timeout, retry = cluster.get("timeout"), cluster.get("retry", 60)
    if timeout is None:
        yield warning(
            "W004",
            f"{where} has no 'timeout': a worker that hangs is never freed.",
            "Set it above the longest run, and 'retry' above it.",
        )
    elif retry <= timeout:
        yield error(
            "E011",
            f"{where}: 'retry' ({retry}) is not above 'timeout' ({timeout}): runs are woken again "
            "while they work.",
            "Set 'retry' to more than 'timeout'.",
        )
    if timeout is not None and is_number(conf.MAX_STEP_SECONDS) and timeout < conf.MAX_STEP_SECONDS:
        yield warning(
            "W006",
            f"{where}: 'timeout' ({timeout}) is below MAX_STEP_SECONDS ({conf.MAX_STEP_SECONDS}): a "
            "step that may still work is interrupted, and if it is a write, its outcome is unknown.",
            "Raise 'timeout' (it is for a whole run), or lower MAX_STEP_SECONDS.",
        )
    if cluster.get("sync"):
        yield warning(
            "W005",
            f"{where}: 'sync' is on: each run is executed inside the call that enqueues it.",
            "Take it out; for shells and tests there is agentruns.dispatch.immediate.",
        )


@register("agentruns", deploy=True)
def check_sqlite_workers(**_: Any) -> list[CheckMessage]:
    """Count the workers of a cluster on SQLite; with `check --deploy` only, since it is no error."""
    entry = settings.DATABASES.get(conf.DATABASE, {}) if is_dictionary() else {}
    if not uses_django_q() or not str(entry.get("ENGINE")).endswith("sqlite3"):
        return []
    workers = getattr(settings, "Q_CLUSTER", {}).get("workers")
    if workers == 1:
        return []
    said = "as many workers as there are processors" if workers is None else f"{workers} workers"
    return [
        warning(
            "W011",
            f"Q_CLUSTER has {said} on SQLite, where one transaction writes at a time in the whole "
            "database: they wait for each other, and one that waits too long is 'locked' out.",
            "Use PostgreSQL where runs are executed side by side; on SQLite, set 'workers' to 1.",
        )
    ]


@register("agentruns", Tags.database, deploy=True)
def check_reaper_schedule(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Look for the reaper's schedule; with `check --deploy --database ...` only.

    Who runs the reaper as a process of its own has none, and ought not to be told at each command.
    """
    if not databases or not uses_django_q():
        return []
    schedules = apps.get_model("django_q", "Schedule")._default_manager.filter(func=REAP)
    if schedules.db not in databases:
        return []
    if schedules.model._meta.db_table not in connections[schedules.db].introspection.table_names():
        return []
    if schedules.exclude(repeats=0).exists():
        return [
            Info(
                "The reaper runs from a schedule of django-q2, in the workers that it watches: where "
                "they are all busy or gone, nobody reaps.",
                hint="Run `manage.py reap_stale_agent_runs --every 30` as a process of its own, or "
                "from cron. If you do, silence agentruns.I001.",
                id="agentruns.I001",
            )
        ]
    return [
        warning(
            "W007",
            "There is no schedule for the reaper: runs whose worker dies would stay as they are.",
            "Run `manage.py install_reaper_schedule`. If `manage.py reap_stale_agent_runs` runs as a "
            "process of its own or from cron, which is better, silence agentruns.W007.",
        )
    ]
