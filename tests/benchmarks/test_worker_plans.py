"""What a worker and a reaper send is found by indexes in a big table, and a scan of it is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from agentruns.models import AgentRun
from benchmarks import filling, worker_plans

pytestmark = pytest.mark.postgres
RUNS = 20_000


@pytest.fixture
def filled(transactional_db: None) -> Iterator[None]:
    filling.fill(RUNS)
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE agentruns_event, agentruns_step, agentruns_agentrun")
        cursor.execute("ALTER TABLE agentruns_agentrun ALTER request SET STORAGE EXTENDED")
        cursor.execute("ALTER TABLE agentruns_step ALTER arguments SET STORAGE EXTENDED")
        cursor.execute("ANALYZE agentruns_event, agentruns_step, agentruns_agentrun")


def test_nothing_that_a_worker_sends_scans_a_table(filled: None) -> None:
    found = worker_plans.plans()
    assert [row["plan"] for row in found] == list(worker_plans.ACTS)
    assert [row for row in found if row["scanned"]] == []


def test_a_scan_of_a_big_table_ends_the_benchmark(
    filled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan() -> Any:
        return lambda: list(AgentRun.objects.filter(error_message="nobody wrote this"))

    monkeypatch.setattr(worker_plans, "ACTS", {"a scan": scan})
    with pytest.raises(SystemExit, match="grow with the table"):
        worker_plans.plans()
