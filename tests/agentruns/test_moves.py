from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentruns.enums import ALLOWED_MOVES, TERMINAL, WAITING, EventKind, RunStatus, StepState
from agentruns.exceptions import LeaseLost, TransitionRefused
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step
from tests.factories import (
    OWNER,
    call,
    claim,
    expire,
    fail,
    history,
    make_due,
    question,
    queued,
    reap,
    reread,
    returned,
    running,
    snapshot,
    with_status,
)

pytestmark = pytest.mark.django_db

QUEUED, RUNNING = RunStatus.QUEUED, RunStatus.RUNNING
COMPLETED, FAILED, CANCELLED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED
FOR_INPUT, FOR_APPROVAL = RunStatus.WAITING_FOR_INPUT, RunStatus.WAITING_FOR_APPROVAL


def last_claim(run: AgentRun) -> Claim:
    """What the segment that ran last, or runs now, holds."""
    return Claim(run.pk, OWNER, run.claim_epoch)


def take(run: AgentRun) -> None:
    if AgentRun.objects.claim(run.uuid, OWNER) is None:
        raise TransitionRefused("nothing to claim")


def decline(run: AgentRun) -> None:
    declined = AgentRun.objects.claim(run.uuid, OWNER, {"another agent": ""})
    assert declined is None
    if history(run)[-1] != "declined":
        raise TransitionRefused("nothing to decline")


def suspend(run: AgentRun, status: RunStatus) -> None:
    run.ask(last_claim(run), question(status, key="another question"))
    run.suspend(last_claim(run))


def decide(run: AgentRun) -> None:
    run.decide("question", True, by="somebody", digest=question(FOR_APPROVAL).digest)


def answer_the_other(run: AgentRun) -> None:
    """Answer one of two questions, an approval and an input."""
    if run.status == FOR_APPROVAL:
        add_question(run)
    decide(run)


def add_question(run: AgentRun) -> None:
    claimed = last_claim(run)
    Step.of(run, claimed, question(key="another"), 1, state=StepState.STARTED).save()


# Each transition: from which statuses it may start, and where it leads.
TRANSITIONS: dict[str, tuple[Callable[[AgentRun], Any], dict[RunStatus, RunStatus]]] = {
    "claim": (take, {QUEUED: RUNNING}),
    "renew": (lambda run: run.renew(last_claim(run)), {RUNNING: RUNNING}),
    "mark_pending_effect": (
        lambda run: run.mark_pending_effect(last_claim(run), call()),
        {RUNNING: RUNNING},
    ),
    "record_step": (
        lambda run: run.record_step(last_claim(run), call(), returned()),
        {RUNNING: RUNNING},
    ),
    "complete": (
        lambda run: run.complete(last_claim(run), Payload.of("output")),
        {RUNNING: COMPLETED},
    ),
    "recover": (lambda run: fail(run, last_claim(run)), {RUNNING: FAILED}),
    "recover a transient failure": (
        lambda run: fail(run, last_claim(run), ConnectionResetError()),
        {RUNNING: QUEUED},
    ),
    "give_back": (lambda run: run.give_back(last_claim(run)), {RUNNING: QUEUED}),
    "suspend for input": (lambda run: suspend(run, FOR_INPUT), {RUNNING: FOR_INPUT}),
    "suspend for approval": (lambda run: suspend(run, FOR_APPROVAL), {RUNNING: FOR_APPROVAL}),
    "answer": (
        lambda run: run.answer("question", Payload.of("yes"), by="somebody"),
        {FOR_INPUT: QUEUED},
    ),
    "decide": (decide, {FOR_APPROVAL: QUEUED}),
    "decide one of two questions": (answer_the_other, {FOR_APPROVAL: FOR_INPUT}),
    "cancel": (
        lambda run: run.cancel(by="somebody"),
        {
            QUEUED: CANCELLED,
            RUNNING: CANCELLED,
            FOR_INPUT: CANCELLED,
            FOR_APPROVAL: CANCELLED,
            CANCELLED: CANCELLED,
        },
    ),
    "retry": (lambda run: run.retry(by="somebody"), {FAILED: QUEUED}),
    "decline": (decline, {QUEUED: QUEUED}),
    "hold": (
        lambda run: run.hold(by="somebody", reason="restored"),
        dict.fromkeys((QUEUED, RUNNING, FOR_INPUT, FOR_APPROVAL), FAILED),
    ),
    "fail": (lambda run: run.fail(by="somebody", reason="nobody serves it"), {QUEUED: FAILED}),
    "move_to_version": (
        lambda run: run.move_to_version("2", by="somebody"),
        {status: status for status in (QUEUED, FOR_INPUT, FOR_APPROVAL, FAILED)},
    ),
}


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("verb", TRANSITIONS)
def test_a_transition_starts_where_it_may_and_changes_nothing_elsewhere(
    verb: str, status: RunStatus
) -> None:
    transition, leads_to = TRANSITIONS[verb]
    run = with_status(status)
    before = snapshot(run)
    if status in leads_to:
        transition(run)
        assert reread(run).status == leads_to[status]
        assert leads_to[status] in ALLOWED_MOVES[status] | {status}
    else:
        with pytest.raises((TransitionRefused, LeaseLost)):
            transition(run)
        assert snapshot(run) == before


@pytest.mark.parametrize("status", RunStatus)
def test_only_a_stale_running_run_is_reaped(status: RunStatus) -> None:
    run = with_status(status)
    if status is RUNNING:
        assert list(AgentRun.objects.lock_stale([run.pk])) == []
        expire(run)
        reap(run)
        assert reread(run).status == QUEUED
    else:
        before = snapshot(run)
        assert list(AgentRun.objects.lock_stale([run.pk])) == []
        assert snapshot(run) == before


def test_every_status_has_its_moves() -> None:
    assert set(ALLOWED_MOVES) == set(RunStatus)


def test_every_status_is_reachable_from_the_queue() -> None:
    reached = {QUEUED}
    while more := {to for status in reached for to in ALLOWED_MOVES[status]} - reached:
        reached |= more
    assert reached == set(RunStatus)


def test_a_settled_run_stays_settled_unless_it_failed() -> None:
    assert {status for status in TERMINAL if ALLOWED_MOVES[status]} == {FAILED}
    assert ALLOWED_MOVES[FAILED] == {QUEUED}


def test_every_unsettled_status_leads_to_a_settled_one() -> None:
    """Nothing is lost: there is no state in which a run can be only looked at."""
    for status in set(RunStatus) - TERMINAL:
        assert ALLOWED_MOVES[status] & TERMINAL


def test_every_allowed_move_is_made_by_a_transition() -> None:
    """The table says no more than the code does."""
    made = {
        (start, end) for _verb, moves in TRANSITIONS.values() for start, end in moves.items()
    } - {(status, status) for status in RunStatus}
    # A run whose journal holds an unresolved write is dead-lettered, wherever it is met.
    by_the_second_witness = {(QUEUED, FAILED)}
    allowed = {(start, end) for start, ends in ALLOWED_MOVES.items() for end in ends}
    assert made | by_the_second_witness == allowed


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    run = with_status(COMPLETED)
    with pytest.raises(TransitionRefused, match="can't become queued"):
        run._move(QUEUED, EventKind.QUEUED, actor="", data={})


@pytest.mark.parametrize("status", TERMINAL)
def test_a_settled_run_has_a_reason_and_a_finish_time(status: RunStatus) -> None:
    run = with_status(status)
    assert run.finished_at is not None
    assert run.termination_reason


@pytest.mark.parametrize("status", WAITING)
def test_a_waiting_run_is_owned_by_nobody_and_goes_on_in_the_background(status: RunStatus) -> None:
    run = with_status(status)
    assert (run.claimed_by, run.lease_expires_at, run.mode) == ("", None, "queued")


def test_every_claim_raises_the_epoch() -> None:
    run = queued()
    epochs = []
    for _round in range(3):
        _run, claimed = claim(run)
        epochs.append(claimed.epoch)
        run.give_back(claimed)
    assert epochs == [1, 2, 3]


def test_a_run_that_is_not_due_is_not_claimed() -> None:
    run = queued(delay_seconds=60)
    assert AgentRun.objects.claim(run.uuid, OWNER) is None
    make_due(run)
    assert AgentRun.objects.claim(run.uuid, OWNER) is not None


def test_a_run_that_does_not_exist_is_not_claimed() -> None:
    run = queued()
    AgentRun.objects.filter(pk=run.pk).delete()
    assert AgentRun.objects.claim(run.uuid, OWNER) is None


def test_a_claim_keeps_the_time_of_the_first_start() -> None:
    run, claimed = running()
    first = reread(run).started_at
    assert first is not None
    run.give_back(claimed)
    claim(run)
    assert reread(run).started_at == first


def test_a_run_given_back_spends_no_retry_and_is_due_at_once() -> None:
    run, claimed = running()
    run.give_back(claimed)
    assert reread(run).requeue_count == 0
    assert AgentRun.objects.due().filter(pk=run.pk).exists()


def test_a_requeue_spends_a_retry_and_pauses() -> None:
    run, claimed = running()
    fail(run, claimed, ConnectionResetError())
    row = reread(run)
    assert row.requeue_count == 1
    assert row.available_at > row.created_at
    details = row.history().get(kind=EventKind.REQUEUED).details
    assert (details["retry"], details["error"]) == (1, "ConnectionResetError")
    assert details["failure_class"] == "transient"
    assert details["delay_seconds"] > 0


def test_a_lost_lease_says_when_it_ended() -> None:
    run, _claimed = running()
    expire(run)
    ended = reread(run).lease_expires_at
    assert ended is not None
    reap(run)
    lost = reread(run).history().get(kind=EventKind.LEASE_LOST)
    assert lost.details["lease_expired_at"] == ended.isoformat()


def test_every_move_is_written_into_the_history() -> None:
    run, claimed = running()
    run.give_back(claimed)
    _run, claimed = claim(run)
    fail(run, claimed)
    run.retry(by="an operator")
    assert history(run) == [
        "queued",
        "claimed",
        "given_back",
        "claimed",
        "dead_lettered",
        "retried",
    ]


def test_the_history_says_who_and_in_which_epoch() -> None:
    run, claimed = running()
    fail(run, claimed)
    run.retry(by="an operator")
    events = list(run.events.order_by("pk").values_list("actor", "epoch"))
    assert events == [("", 0), (OWNER, 1), (OWNER, 1), ("an operator", 1)]


def test_a_run_that_was_deleted_is_lost_for_its_segment() -> None:
    run, claimed = running()
    AgentRun.objects.filter(pk=run.pk).delete()
    with pytest.raises(LeaseLost):
        run.renew(claimed)
