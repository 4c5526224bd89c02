from __future__ import annotations

import pytest

from agentruns.enums import EventKind, RunStatus, StepState
from agentruns.exceptions import LeaseLost, TransitionRefused
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step
from tests.factories import call, history, queued, reread, returned, running, step_of

from .rivals import second_comes_while, together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.server,
    pytest.mark.usefixtures("form"),
]


def claimed(run: AgentRun, owner: str) -> Claim | None:
    taken = AgentRun.objects.claim(run.uuid, owner)
    return taken[1] if taken else None


def test_one_of_several_claims_wins() -> None:
    run = queued()
    owners = [f"test:host:{n}:0" for n in range(4)]
    rivals = together(*[lambda owner=owner: claimed(run, owner) for owner in owners])
    won = [claim for rival in rivals if (claim := rival.outcome())]
    assert len(won) == 1
    row = reread(run)
    assert (row.claimed_by, row.claim_epoch) == (won[0].owner, 1)
    assert history(run) == [EventKind.QUEUED, EventKind.CLAIMED]


def test_a_claim_that_waited_for_another_takes_nothing() -> None:
    run = queued()
    second = second_comes_while(
        lambda: claimed(run, "test:first:1:0"), lambda: claimed(run, "test:second:1:0")
    )
    assert second.outcome() is None
    assert reread(run).claimed_by == "test:first:1:0"


def test_a_stamp_is_read_back_after_the_transaction_that_may_still_make_it() -> None:
    run, held = running()

    def stamp() -> None:
        AgentRun.objects.lock_one(pk=run.pk)
        Step.of(run, held, call(), 1, state=StepState.STARTED).save()

    second = second_comes_while(stamp, lambda: run.own_attempt(held, "write"))
    assert second.outcome() == step_of(run)


def test_a_cancel_that_comes_first_leaves_nothing_to_claim() -> None:
    run = queued()
    second = second_comes_while(
        lambda: run.cancel(by="somebody"), lambda: claimed(run, "test:w:1:0")
    )
    assert second.outcome() is None
    row = reread(run)
    assert (row.status, row.claim_epoch) == (RunStatus.CANCELLED, 0)


def test_a_cancel_that_comes_after_the_claim_stops_the_worker_at_its_next_guard() -> None:
    run = queued()
    second = second_comes_while(
        lambda: claimed(run, "test:w:1:0"), lambda: run.cancel(by="somebody")
    )
    assert second.outcome() is RunStatus.CANCELLED
    with pytest.raises(LeaseLost):
        run.mark_pending_effect(Claim(run.pk, "test:w:1:0", 1), call())
    assert not run.journal().exists()


def test_a_cancel_that_comes_first_wins_against_a_completion() -> None:
    run, claim = running()
    second = second_comes_while(
        lambda: run.cancel(by="somebody"), lambda: run.complete(claim, Payload.of("late"))
    )
    with pytest.raises(LeaseLost):
        second.outcome()
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.status, row.output) == (RunStatus.CANCELLED, None)


def test_a_completion_that_comes_first_wins_against_a_cancel() -> None:
    run, claim = running()
    second = second_comes_while(
        lambda: run.complete(claim, Payload.of("done")), lambda: run.cancel(by="somebody")
    )
    with pytest.raises(TransitionRefused):
        second.outcome()
    row = reread(run)
    assert (row.status, row.cancel_requested_at) == (RunStatus.COMPLETED, None)


def test_a_cancel_that_waited_for_a_record_cancels_a_run_whose_write_is_certain() -> None:
    run, claim = running()
    step = run.mark_pending_effect(claim, call())
    second = second_comes_while(
        lambda: run.record_step(claim, call(), returned("sent"), step),
        lambda: run.cancel(by="somebody"),
    )
    assert second.outcome() is RunStatus.CANCELLED
    assert reread(run).pending_effect == ""
    assert step_of(run).state == "recorded"
