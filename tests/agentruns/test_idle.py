"""What the app costs where nothing happens."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from django.db import connection

from agentruns.models import AgentRun
from agentruns.segment import Segment
from tests.factories import READ, executed, queued
from tests.harness.database import said
from tests.harness.environment import subprocess_environment
from tests.races.rivals import holding
from tests.servers.process import ROOT

LLM_LIBRARIES = ("pydantic_ai", "openai", "anthropic", "mcp")
IMPORT_ALL = """
import importlib, pkgutil, sys
import django
from django.conf import settings
settings.INSTALLED_APPS.remove("nrllm")
settings.INSTALLED_APPS.remove("tests.project")
django.setup()
import agentruns
for module in pkgutil.walk_packages(agentruns.__path__, "agentruns."):
    if not module.name.startswith("agentruns.migrations"):
        importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
LOCKS_OF_OTHERS = """
    SELECT activity.state, count(locks.pid) FROM pg_stat_activity AS activity
    LEFT JOIN pg_locks AS locks ON locks.pid = activity.pid AND locks.mode LIKE 'Row%%Lock'
    WHERE activity.datname = current_database() AND activity.pid <> pg_backend_pid()
      AND activity.backend_type = 'client backend'
    GROUP BY activity.pid, activity.state
"""


def others() -> list[tuple[str, int]]:
    """What each other connection to this database is in, and how many row locks it has."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(LOCKS_OF_OTHERS)
            return list(cursor.fetchall())
        cursor.execute(said("others"), [connection.settings_dict["NAME"]])
        numbers = [number for (number,) in cursor.fetchall()]
        cursor.execute("SHOW ENGINE INNODB STATUS")
        active: list[str] = re.findall(IN_TRANSACTION, cursor.fetchone()[2])
    return [("in transaction" if str(it) in active else "idle", 0) for it in numbers]


# Whoever has a row lock is in one.
IN_TRANSACTION = (
    r"---TRANSACTION [^\n]*, ACTIVE[^\n]*(?:\n(?!---)[^\n]*)*?\nMariaDB thread id (\d+),"
)


@pytest.mark.django_db
def test_importing_every_module_of_it_pulls_in_no_llm_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "agentruns" in loaded
    assert loaded.isdisjoint(LLM_LIBRARIES)


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_a_worker_that_waits_in_a_step_holds_no_transaction_and_no_row_lock(settings: Any) -> None:
    """As it does for a model: in the body, with its fence stamped or none."""
    # A beat is short, and has a row lock: there is one at the beginning, and none meanwhile.
    settings.AGENTRUNS = {**settings.AGENTRUNS, "LEASE_SECONDS": 180, "HEARTBEAT_SECONDS": 60}
    seen: list[tuple[str, int]] = []

    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            seen.extend(others())

        segment.step("read", body, effect=READ)
        segment.step("write", body)

    assert executed(agent).status == "completed"
    # The segment's connection and its heartbeat's, in each of the two bodies.
    assert len(seen) >= 4
    assert set(seen) == {("idle", 0)}


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_left_open_would_be_seen() -> None:
    run = queued()
    with holding(lambda: AgentRun.objects.lock_one(pk=run.pk)):
        assert any(state != "idle" for state, _locks in others())
