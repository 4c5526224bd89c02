from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from agentruns.enums import EventKind, StepState, ToolEffect
from agentruns.exceptions import LeaseLost, SegmentInterrupt
from agentruns.guard import from_now
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.factories import (
    READ,
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    execute_again,
    executed,
    expire,
    history,
    reap,
    reread,
    step_of,
)
from tests.harness.database import end_other_connections
from tests.project.models import LedgerEntry
from tests.servers.waiting import wait_until

from .wire import LOSE_ANSWER, LOSE_STATEMENT, BreakingWire, breaking_wire

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.server,
    pytest.mark.usefixtures("form"),
]

LOST = ConnectionResetError("the other side is away")
STARTED = b'INSERT INTO "agentruns_step"'
RECORDED = b'UPDATE "agentruns_step"'
CLEARED = b'UPDATE "agentruns_agentrun"'
COMMIT = b"COMMIT"
RENEWED_WITH_OTHERS = b"SKIP LOCKED"
LOCKED = b"FOR UPDATE" if connection.vendor == "mysql" else b"FOR NO KEY UPDATE"


@pytest.fixture
def wire() -> Iterator[BreakingWire]:
    with breaking_wire() as wire:
        yield wire


@pytest.fixture(autouse=True)
def no_heartbeats_in_between(settings: Any) -> None:
    """Leave the statements to the segment: one beat at its beginning."""
    settings.AGENTRUNS = {**settings.AGENTRUNS, "HEARTBEAT_SECONDS": 60, "LEASE_SECONDS": 120}


@pytest.fixture
def break_at(wire: BreakingWire, form: str) -> Callable[..., None]:
    """Break the wire at a statement, or at the commit of one that is a transaction of its own."""

    def set_up(statement: bytes, how: str, *, after: bytes = b"") -> None:
        alone = statement == COMMIT and form == "statements"
        wire.break_at(*((after, how) if alone else (statement, how)), after=b"" if alone else after)

    return set_up


def one_write(bodies: list[str], effect: ToolEffect = WRITE) -> Callable[[Segment], Any]:
    def agent(segment: Segment) -> Any:
        def body(key: str) -> dict[str, str]:
            bodies.append("write")
            return {"sent": key}

        return segment.step("write", body, effect=effect)

    return agent


# At the stamp everything before its commit is lost with the connection; at the commit nobody knows.
AT_THE_STAMP = [
    (LOCKED, b"", LOSE_STATEMENT),
    (LOCKED, b"", LOSE_ANSWER),
    (STARTED, b"", LOSE_STATEMENT),
    (STARTED, b"", LOSE_ANSWER),
    (COMMIT, STARTED, LOSE_STATEMENT),
    (COMMIT, STARTED, LOSE_ANSWER),
]


@pytest.mark.parametrize(("statement", "after", "how"), AT_THE_STAMP)
def test_a_connection_lost_at_the_stamp_costs_neither_the_run_nor_a_second_attempt(
    wire: BreakingWire, break_at: Callable[..., None], statement: bytes, after: bytes, how: str
) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> Any:
        break_at(statement, how, after=after)
        return one_write(bodies)(segment)

    run = executed(agent)
    assert wire.broken == 1
    assert (run.status, run.requeue_count, run.pending_effect) == ("completed", 0, "")
    assert bodies == ["write"]
    assert Step.objects.get(run=run).attempt == 1


AT_THE_RECORD = [
    (LOCKED, b"", LOSE_STATEMENT),
    (RECORDED, b"", LOSE_STATEMENT),
    (RECORDED, b"", LOSE_ANSWER),
    (CLEARED, RECORDED, LOSE_STATEMENT),
    (CLEARED, RECORDED, LOSE_ANSWER),
    (COMMIT, RECORDED, LOSE_STATEMENT),
    (COMMIT, RECORDED, LOSE_ANSWER),
]


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE])
@pytest.mark.parametrize(("statement", "after", "how"), AT_THE_RECORD)
def test_a_connection_lost_at_the_record_is_replaced_and_the_write_recorded(
    wire: BreakingWire,
    break_at: Callable[..., None],
    statement: bytes,
    after: bytes,
    how: str,
    effect: ToolEffect,
) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> Any:
        def body(key: str) -> dict[str, str]:
            bodies.append("write")
            break_at(statement, how, after=after)
            return {"sent": key}

        return segment.step("write", body, effect=effect)

    run = executed(agent)
    assert wire.broken == 1
    assert (run.status, run.requeue_count, run.pending_effect) == ("completed", 0, "")
    assert bodies == ["write"]
    step = Step.objects.get(run=run)
    assert (step.state, step.attempt) == (StepState.RECORDED, 1)
    assert step.result is not None
    assert step.result.value == {"sent": step.idempotency_key}


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_read_whose_commit_is_unknown_is_recorded_once(
    wire: BreakingWire, break_at: Callable[..., None], how: str
) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> str:
        def body(key: str) -> str:
            bodies.append("read")
            break_at(COMMIT, how, after=STARTED)
            return "read"

        value: str = segment.step("read", body, effect=READ)
        return value

    run = executed(agent)
    assert (wire.broken, run.status, bodies) == (1, "completed", ["read"])
    assert Step.objects.filter(run=run).count() == 1


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_transactional_write_whose_commit_is_unknown_happens_exactly_once(
    wire: BreakingWire, how: str
) -> None:
    def agent(segment: Segment) -> str:
        def body(key: str) -> str:
            LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=1)
            if segment.run.requeue_count == 0:
                wire.break_at(COMMIT, how, after=b"project_ledgerentry")
            return "entered"

        value: str = segment.step("ledger", body, effect=TRANSACTIONAL)
        return value

    run = executed(agent)
    assert wire.broken == 1
    if how == LOSE_STATEMENT:
        assert (run.status, run.pending_effect, LedgerEntry.objects.count()) == ("queued", "", 0)
        run = execute_again(run, agent)
    assert (run.status, LedgerEntry.objects.count()) == ("completed", 1)
    assert Step.objects.filter(run=run).count() == 1


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_completion_whose_commit_is_unknown_completes_once(
    wire: BreakingWire, break_at: Callable[..., None], how: str
) -> None:
    def agent(segment: Segment) -> str:
        break_at(COMMIT, how, after=b"agentruns_event")
        return "output"

    run = executed(agent)
    assert (wire.broken, run.status) == (1, "completed")
    assert history(run) == [EventKind.QUEUED, EventKind.CLAIMED, EventKind.COMPLETED]


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_recovery_whose_commit_is_unknown_spends_one_retry(wire: BreakingWire, how: str) -> None:
    def agent(segment: Segment) -> None:
        wire.break_at(COMMIT, how, after=b"agentruns_event")
        raise LOST

    run = executed(agent)
    assert (wire.broken, run.status, run.requeue_count) == (1, "queued", 1)
    assert history(run) == [EventKind.QUEUED, EventKind.CLAIMED, EventKind.REQUEUED]


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_run_whose_parking_is_unknown_waits_once(wire: BreakingWire, how: str) -> None:
    def agent(segment: Segment) -> Any:
        wire.break_at(COMMIT, how, after=b"agentruns_event")
        return segment.wait_for_input("question", "how many?")

    run = executed(agent)
    assert (wire.broken, run.status, run.requeue_count) == (1, "waiting_for_input", 0)
    assert Step.objects.filter(run=run).count() == 1


@pytest.mark.parametrize("how", [LOSE_STATEMENT, LOSE_ANSWER])
def test_a_replay_on_a_lost_connection_gives_what_was_recorded(
    wire: BreakingWire, how: str
) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> Any:
        if segment.run.requeue_count:
            wire.break_at(b"SELECT result FROM agentruns_step", how)
        try:
            value = segment.step("write", write, effect=WRITE)
        except Exception:
            bodies.append("took the failed replay for a failed write")
            raise
        if not segment.run.requeue_count:
            raise LOST
        return value

    def write(key: str) -> str:
        bodies.append("write")
        return "sent"

    run = execute_again(executed(agent), agent)
    assert (wire.broken, run.status, bodies) == (1, "completed", ["write"])


def test_backends_that_are_terminated_in_the_body_cost_nothing() -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> Any:
        def body(key: str) -> str:
            bodies.append("write")
            assert end_other_connections() >= 1
            return "sent"

        return segment.step("write", body, effect=WRITE)

    run = executed(agent)
    assert (run.status, run.requeue_count, bodies) == ("completed", 0, ["write"])


def test_a_record_that_cannot_be_made_leaves_an_uncertain_write_to_the_reaper(
    wire: BreakingWire, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "RECORD_RETRY_SECONDS": 0.3}
    seen: list[BaseException] = []

    def agent(segment: Segment) -> str:
        def body(key: str) -> str:
            wire.cut_everything()
            return "sent"

        try:
            segment.step("write", body, effect=WRITE)
        except BaseException as error:
            seen.append(error)
            raise
        return "unreachable"

    run = executed(agent)
    assert isinstance(seen[0], SegmentInterrupt)
    assert (run.status, run.pending_effect) == ("running", WRITE)
    expire(run)
    reap(run)
    row = reread(run)
    assert (row.status, row.termination_reason) == ("failed", "interrupted_write")
    assert step_of(run).state == StepState.UNCERTAIN


def test_a_record_that_is_possible_again_in_time_is_made(wire: BreakingWire) -> None:
    def agent(segment: Segment) -> Any:
        def body(key: str) -> str:
            wire.cut_everything()
            threading.Timer(0.3, wire.restore).start()
            return "sent"

        return segment.step("write", body, effect=WRITE)

    run = executed(agent)
    assert (run.status, run.pending_effect) == ("completed", "")


def test_a_heartbeat_that_lost_its_connection_renews_on_a_new_one(
    wire: BreakingWire, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "HEARTBEAT_SECONDS": 0.05}

    def agent(segment: Segment) -> str:
        wire.cut_everything()
        wire.restore()
        row = AgentRun.objects.filter(pk=segment.run.pk)
        row.write_guarded(lease_expires_at=Now())
        covered = row.filter(lease_expires_at__gt=from_now(10))
        return "renewed" if wait_until(covered.exists, what="a renewal") else ""

    assert executed(agent).status == "completed"


def test_renewals_that_fail_for_a_whole_lease_refuse_a_new_step(
    wire: BreakingWire, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "HEARTBEAT_SECONDS": 0.1}
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        wire.break_each(RENEWED_WITH_OTHERS)
        wait_until(lambda: wire.broken, what="a renewal that fails")
        settings.AGENTRUNS = {**settings.AGENTRUNS, "LEASE_SECONDS": 0.6}
        wait_until(lambda: not segment_covers_a_step(segment), what="the end of the lease")
        bodies.append("the code goes on")
        segment.step("write", lambda key: bodies.append("write"), effect=WRITE)

    run = executed(agent)
    assert bodies == ["the code goes on"]
    assert not AgentRun.objects.exclude(pending_effect="").exists()
    assert run.status == "running", "what becomes of it is the reaper's business"


def segment_covers_a_step(segment: Segment) -> bool:
    try:
        segment.heartbeat.refuse_if_lost()
    except LeaseLost:
        return False
    return True
