from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import F

from agentruns import hotpath
from agentruns.enums import RunStatus
from agentruns.guard import from_now
from agentruns.models import AgentRun
from agentruns.reaper import sweep
from agentruns.verdict import Verdict
from tests.factories import (
    REPEATABLE,
    WRITE,
    expire,
    fenced,
    history,
    queued,
    reread,
    running,
    snapshot,
    with_status,
)
from tests.harness.database import end_own_connection

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form")]

woken: list[UUID] = []


class Listening:
    def wake(self, uuid: UUID) -> None:
        woken.append(uuid)


class Deaf:
    def wake(self, uuid: UUID) -> None:
        raise ConnectionRefusedError


@pytest.fixture(autouse=True)
def messages(settings: Any) -> Iterator[list[UUID]]:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": f"{__name__}.Listening"}
    woken.clear()
    yield woken
    woken.clear()


def stale(**options: Any) -> AgentRun:
    run, _held = running(**options)
    expire(run)
    return run


def test_each_stale_run_meets_its_verdict() -> None:
    plain, (writing, *_), (repeatable, *_) = stale(), fenced(WRITE), fenced(REPEATABLE)
    spent, cancelled, once, without = (
        stale(),
        stale(),
        stale(mode="synchronous"),
        stale(request=None),
    )
    asked, *_rest = fenced(REPEATABLE)
    asked.cancel(by="somebody")
    cancelled.cancel(by="somebody")
    AgentRun.objects.filter(pk=spent.pk).write_guarded(requeue_count=3)
    for run in (writing, repeatable, asked):
        expire(run)
    report = sweep()
    assert {run.uuid: (run.action, run.reason) for run in report.runs} == {
        str(plain.uuid): ("requeue", ""),
        str(writing.uuid): ("dead_letter", "interrupted_write"),
        str(repeatable.uuid): ("requeue", ""),
        str(spent.uuid): ("dead_letter", "retries_exhausted"),
        str(asked.uuid): ("cancel", "cancelled"),
        str(once.uuid): ("dead_letter", "not_retryable"),
        str(without.uuid): ("dead_letter", "not_retryable"),
    }
    counts = report.as_dict()
    assert (counts["requeued"], counts["dead_lettered"], counts["cancelled"]) == (2, 4, 1)
    assert (counts["errors"], counts["dry_run"]) == (0, False)


def test_a_second_sweep_finds_nothing() -> None:
    stale()
    assert len(sweep().runs) == 1
    assert sweep().runs == []


@pytest.mark.parametrize("status", RunStatus)
def test_a_run_that_is_not_stale_is_left_alone(status: RunStatus) -> None:
    run = with_status(status)
    AgentRun.objects.filter(pk=run.pk).write_guarded(woken_at=from_now(0))
    before = snapshot(run)
    assert sweep().runs == []
    assert snapshot(run) == before


def test_the_history_says_whose_lease_was_lost_and_what_became_of_it() -> None:
    run = stale()
    sweep()
    assert history(run) == ["queued", "claimed", "lease_lost", "requeued"]


def test_a_run_that_kills_its_worker_every_time_ends() -> None:
    run = queued()
    for _round in range(4):
        AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=from_now(-1))
        assert AgentRun.objects.claim(run.uuid, "w") is not None
        expire(run)
        sweep()
    row = reread(run)
    assert (row.status, row.termination_reason, row.requeue_count) == (
        "failed",
        "retries_exhausted",
        3,
    )


def test_a_dry_run_tells_and_changes_nothing(messages: list[UUID]) -> None:
    reaped, waiting = stale(), queued(woken=False)
    before = snapshot(reaped), snapshot(waiting)
    report = sweep(dry_run=True)
    assert [(run.uuid, run.action) for run in report.runs] == [(str(reaped.uuid), "requeue")]
    assert report.woken == 1
    assert (snapshot(reaped), snapshot(waiting)) == before
    assert messages == []


@pytest.mark.parametrize("batch_size", [1, 2, 500])
def test_a_limit_holds_across_batches(batch_size: int) -> None:
    runs = [stale() for _ in range(5)]
    report = sweep(limit=3, batch_size=batch_size)
    assert [run.uuid for run in report.runs] == [str(run.uuid) for run in runs[:3]]
    assert len(sweep(batch_size=batch_size).runs) == 2


REFUSE = {
    "postgresql": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
            AS $$BEGIN RAISE 'not this one'; END$$;
        CREATE TRIGGER refuse BEFORE UPDATE ON agentruns_agentrun FOR EACH ROW
            WHEN (OLD.id = {pk}) EXECUTE FUNCTION refuse()
        """,
    "sqlite": """
        CREATE TRIGGER refuse BEFORE UPDATE ON agentruns_agentrun WHEN OLD.id = {pk}
            BEGIN SELECT RAISE(ABORT, 'not this one'); END
        """,
    "mysql": """
        CREATE TRIGGER refuse BEFORE UPDATE ON agentruns_agentrun FOR EACH ROW
            IF OLD.id = {pk} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF
        """,
}
AGREE = {
    "postgresql": "DROP FUNCTION refuse CASCADE",
    "sqlite": "DROP TRIGGER refuse",
    "mysql": "DROP TRIGGER refuse",
}


@pytest.fixture
def bad_row(transactional_db: None) -> Iterator[AgentRun]:
    """A run which the database refuses to change."""
    run = stale()
    with connection.cursor() as cursor:
        cursor.execute(REFUSE[connection.vendor].format(pk=run.pk))
        try:
            yield run
        finally:
            cursor.execute(AGREE[connection.vendor])


@pytest.mark.parametrize("batch_size", [1, 500])
def test_one_bad_row_is_reported_and_does_not_stop_the_rest(
    bad_row: AgentRun, batch_size: int
) -> None:
    before = snapshot(bad_row)
    others = [stale(), stale()]
    report = sweep(batch_size=batch_size)
    assert [run.uuid for run in report.errors] == [str(bad_row.uuid)]
    assert "not this one" in report.errors[0].error
    assert snapshot(bad_row) == before
    assert {reread(run).status for run in others} == {"queued"}
    assert report.as_dict()["errors"] == 1


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("dies_at", [0, 1, 2])
def test_a_connection_that_dies_in_a_batch_costs_no_run_its_verdict(
    monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    runs = [stale() for _ in range(3)]
    reap, reaped = AgentRun.reap, list[int]()

    def dies_once(run: AgentRun) -> Verdict:
        reaped.append(run.pk)
        if reaped == [one.pk for one in runs[: dies_at + 1]]:
            end_own_connection()
        return reap(run)

    monkeypatch.setattr(hotpath, "has_statements", lambda: False)
    monkeypatch.setattr(AgentRun, "reap", dies_once)
    report = sweep()
    assert (report.as_dict()["requeued"], report.errors) == (3, [])
    assert {history(run).count("requeued") for run in runs} == {1}


# Waking again.


def set_times(run: AgentRun, *, due: float, woken: float | None) -> None:
    """Let the run have been due, and have been woken, this many seconds ago."""
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        available_at=from_now(-due), woken_at=None if woken is None else from_now(-woken)
    )


@pytest.mark.parametrize(
    ("due", "woken", "again"),
    [
        (0.5, None, True),  # nobody was told
        (30, 30, False),
        (61, 61, True),  # WAKE_AGAIN_SECONDS after the first
        (90, 30, False),
        (200, 80, False),  # woken after 120 s: not before 240
        (129, 65, True),
        (500, 200, False),  # woken after 300 s
        (500, 251, True),  # woken after 249 s
        (90_000, 3500, False),
        (90_000, 3601, True),  # WAKE_AGAIN_MAX_SECONDS at the longest
        (-60, None, False),  # not due yet
    ],
)
def test_a_run_that_nobody_took_is_woken_again_after_twice_the_time(
    settings: Any, messages: list[UUID], due: float, woken: float | None, again: bool
) -> None:
    settings.AGENTRUNS = {
        **settings.AGENTRUNS,
        "WAKE_AGAIN_SECONDS": 60,
        "WAKE_AGAIN_MAX_SECONDS": 3600,
    }
    run = queued()
    set_times(run, due=due, woken=woken)
    assert sweep().woken == int(again)
    assert messages == ([run.uuid] if again else [])
    assert sweep().woken == 0, "woken now, it is not woken again at once"


def test_a_requeued_run_is_woken_when_its_pause_is_over(
    settings: Any, messages: list[UUID]
) -> None:
    settings.AGENTRUNS = {
        **settings.AGENTRUNS,
        "RETRY_BACKOFF_SECONDS": 60,
        "RETRY_BACKOFF_MAX_SECONDS": 60,
    }
    run = stale()
    sweep()
    assert messages == []
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        available_at=F("available_at") - timedelta(hours=1)
    )
    sweep()
    assert messages == [run.uuid]


def test_a_wake_up_that_cannot_be_sent_is_sent_by_a_later_sweep(
    settings: Any, messages: list[UUID]
) -> None:
    run = queued(woken=False)
    working = settings.AGENTRUNS
    settings.AGENTRUNS = {**working, "DISPATCHER": f"{__name__}.Deaf"}
    assert sweep().woken == 0
    settings.AGENTRUNS = working
    set_times(run, due=3600, woken=3600)
    assert sweep().woken == 1
    assert messages == [run.uuid]


def test_the_longest_due_are_woken_first_and_a_limit_holds(messages: list[UUID]) -> None:
    runs = [queued() for _ in range(4)]
    for ago, run in enumerate(runs, start=1):
        set_times(run, due=ago, woken=None)
    assert sweep(limit=2, batch_size=1).woken == 2
    assert messages == [runs[3].uuid, runs[2].uuid]


@pytest.mark.parametrize("status", set(RunStatus) - {RunStatus.QUEUED})
def test_nothing_but_a_queued_run_is_woken(status: RunStatus, messages: list[UUID]) -> None:
    run = with_status(status)
    set_times(run, due=1000, woken=None)
    sweep()
    assert messages == []
