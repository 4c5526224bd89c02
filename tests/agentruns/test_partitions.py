"""docs/how-to/partition.md: what it says is executed, and runs go on as before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from agentruns.enums import EventKind
from agentruns.fields import Payload
from agentruns.models import Event
from agentruns.reaper import sweep
from tests.factories import expire, history, running
from tests.markdown import Page
from tests.servers.process import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

CLAIMED = [EventKind.QUEUED, EventKind.CLAIMED]


def this_month() -> str:
    return f"{datetime.now(UTC):%Y_%m}"


def partition() -> str:
    return f"agentruns_event_{this_month()}"


def execute(what: str) -> list[Any]:
    """Execute the page's statements of which these words are a part; return what the last one read."""
    [sql] = [
        block.content
        for block in Page(ROOT / "docs/how-to/partition.md").blocks("postgresql")
        if what in block.content
    ]
    with connection.cursor() as cursor:
        # The test is one transaction; what it has written so far is checked now.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        sql = sql.replace("BEGIN;", "").replace("COMMIT;", "")
        cursor.execute(sql.replace("2027_01", this_month()))
        return list(cursor.fetchall()) if cursor.description else []


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relid::text FROM pg_partition_tree('agentruns_event') WHERE isleaf")
        return {name for (name,) in cursor.fetchall()}


def test_events_can_be_partitioned_by_month() -> None:
    before, held_before = running()
    execute("PARTITION BY")
    before.complete(held_before, Payload.of("done"))
    assert history(before) == [*CLAIMED, EventKind.COMPLETED]
    run, _held = running()
    expire(run)
    assert sweep().reaped == 1
    assert history(run) == [*CLAIMED, EventKind.LEASE_LOST, EventKind.REQUEUED]
    pk = run.pk
    run.delete()
    assert not Event.objects.filter(run_id=pk).exists()


def test_every_month_that_there_is_has_a_partition_of_its_own() -> None:
    run, _held = running()
    Event.objects.filter(run=run, kind=EventKind.QUEUED).update(
        at=datetime.now(UTC) - timedelta(days=100)
    )
    execute("PARTITION BY")
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM agentruns_event")
        tables = {table for (table,) in cursor.fetchall()}
    assert len(tables) == 2
    assert "agentruns_event_rest" not in tables
    execute("IF NOT EXISTS")
    assert "agentruns_event_2028_01" in partitions()


def test_an_empty_history_can_be_partitioned() -> None:
    execute("PARTITION BY")
    run, _held = running()
    assert history(run) == CLAIMED


def test_a_partition_has_the_storage_that_the_table_had() -> None:
    def storage(table: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [table])
            return cursor.fetchall()

    before = storage("agentruns_event")
    execute("PARTITION BY")
    assert storage(partition()) == before


def test_a_month_is_named_to_be_kept_until_its_runs_need_it_no_more() -> None:
    execute("PARTITION BY")
    done, held = running()
    in_doubt, _held_in_doubt = running()
    assert {uuid for uuid, _status in execute("SELECT DISTINCT")} == {done.uuid, in_doubt.uuid}
    done.complete(held, Payload.of("done"))
    expire(in_doubt)
    in_doubt.hold(by="ada", reason="a restore")
    assert execute("SELECT DISTINCT") == [(in_doubt.uuid, "failed")]


def test_an_old_month_can_be_detached_and_dropped_and_runs_go_on() -> None:
    execute("PARTITION BY")
    old, held = running()
    old.complete(held, Payload.of("done"))
    month = partition()
    assert month in partitions()
    execute("DETACH")
    assert month not in partitions()
    assert history(old) == []
    run, held = running()
    run.complete(held, Payload.of("done"))
    assert history(run) == [*CLAIMED, EventKind.COMPLETED]
