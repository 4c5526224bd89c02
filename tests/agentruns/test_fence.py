from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from agentruns.enums import (
    Resolution,
    RunStatus,
    StepOutcome,
    StepState,
    TerminationReason,
    ToolEffect,
)
from agentruns.exceptions import CancelRequested, LeaseLost, TransitionRefused
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step
from agentruns.models.step import Ending, idempotency_key
from agentruns.models.worker import flush_commits
from agentruns.verdict import Action
from tests.factories import (
    OWNER,
    READ,
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    call,
    claim,
    dead_lettered_write,
    empty_fence_by_hand,
    expire,
    fail,
    fenced,
    question,
    queued,
    reap,
    reread,
    returned,
    running,
    snapshot,
    step_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form")]

ABOUT_TO_STAMP = call(arguments={"to": "customer"})


def test_a_stamp_writes_effect_attempt_and_lease() -> None:
    run, claimed = running()
    expire(run)
    step = run.mark_pending_effect(claimed, ABOUT_TO_STAMP)
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)
    assert not AgentRun.objects.stale().filter(pk=run.pk).exists()
    stored = step_of(run)
    assert (stored.state, stored.attempt, stored.epoch) == (StepState.STARTED, 1, claimed.epoch)
    assert stored.arguments is not None
    assert stored.arguments.value == {"to": "customer"}
    assert stored.owner == OWNER


@pytest.mark.django_db(transaction=True)
def test_a_stamp_inside_an_outer_transaction_is_refused() -> None:
    run, claimed = running()
    before = snapshot(run)
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        run.mark_pending_effect(claimed, call())
    assert snapshot(run) == before


def test_a_stamp_inside_the_transaction_of_a_test_is_allowed() -> None:
    """pytest-django's `db` fixture, like `TestCase`, is not an outer transaction for `durable`."""
    run, claimed = running()
    assert connection.in_atomic_block
    run.mark_pending_effect(claimed, call())
    assert reread(run).pending_effect == WRITE


@pytest.mark.parametrize("standing", [WRITE, REPEATABLE])
@pytest.mark.parametrize("second", [WRITE, REPEATABLE])
def test_a_second_fence_is_refused(standing: ToolEffect, second: ToolEffect) -> None:
    run, claimed, _step = fenced(standing)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="one write at a time"):
        run.mark_pending_effect(claimed, call("another", second))
    assert snapshot(run) == before


def test_a_stamp_after_a_requested_cancel_is_refused() -> None:
    run, claimed, step = fenced()
    run.cancel(by="somebody")
    run.record_step(claimed, call(), returned(), step)
    before = snapshot(run)
    with pytest.raises(CancelRequested):
        run.mark_pending_effect(claimed, call("another"))
    assert snapshot(run) == before


def test_a_recorded_step_is_not_stamped_again() -> None:
    run, claimed, step = fenced()
    run.record_step(claimed, call(), returned(), step)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="recorded already"):
        run.mark_pending_effect(claimed, call())
    assert snapshot(run) == before


def test_recording_the_fenced_attempt_clears_the_fence_and_renews_the_lease() -> None:
    run, claimed, step = fenced()
    expire(run)
    assert run.record_step(claimed, call(), returned({"id": 7}), step) is False
    row, stored = reread(run), step_of(run)
    assert (row.pending_effect, row.pending_step_id) == ("", None)
    assert not AgentRun.objects.stale().filter(pk=run.pk).exists()
    assert (stored.state, stored.recorded_key) == (StepState.RECORDED, "write")
    assert stored.result is not None
    assert stored.result.value == {"id": 7}


@pytest.mark.parametrize("effect", [READ, TRANSACTIONAL])
def test_recording_anything_else_leaves_the_fence(effect: ToolEffect) -> None:
    run, claimed, step = fenced()
    run.record_step(claimed, call("read", effect), returned())
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)
    expire(run)
    reap(run)
    assert reread(run).termination_reason == TerminationReason.INTERRUPTED_WRITE


def test_recording_another_attempt_leaves_the_fence() -> None:
    """Two attempts in flight can't come to be; if they did, each would clear its own fence only."""
    run, claimed, step = fenced()
    stray = Step.of(run, claimed, call("stray", REPEATABLE), 1, state=StepState.STARTED)
    stray.save()
    run.record_step(claimed, call("stray", REPEATABLE), returned(), stray)
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)


def test_an_attempt_that_is_not_in_flight_is_not_recorded() -> None:
    run, claimed, step = fenced()
    Step.objects.filter(pk=step.pk).update(state=StepState.NOT_APPLIED)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="not in flight"):
        run.record_step(claimed, call(), returned(), step)
    assert snapshot(run) == before


def test_a_record_says_whether_a_cancel_was_requested_meanwhile() -> None:
    run, claimed, step = fenced()
    run.cancel(by="somebody")
    assert run.record_step(claimed, call(), returned(), step) is True


def test_the_record_of_a_read_says_it_too() -> None:
    run, claimed, _step = fenced()
    assert run.record_step(claimed, call("read", READ), returned()) is False
    run.cancel(by="somebody")
    assert run.record_step(claimed, call("another", READ), returned()) is True


def test_a_record_has_its_time() -> None:
    run, claimed, step = fenced()
    assert step_of(run).ended_at is None
    run.record_step(claimed, call(), returned(), step)
    run.record_step(claimed, call("read", READ), returned())
    for key in ("write", "read"):
        assert step_of(run, key).ended_at is not None


def test_the_record_of_a_read_renews_the_lease() -> None:
    run, claimed = running()
    expire(run)
    run.record_step(claimed, call("read", READ), returned())
    assert not AgentRun.objects.stale().filter(pk=run.pk).exists()


def test_a_renewal_begins_the_lease_anew() -> None:
    run, held = running()
    expire(run)
    run.renew(held)
    assert not AgentRun.objects.stale().filter(pk=run.pk).exists()


@pytest.mark.parametrize("standing", [WRITE, REPEATABLE])
def test_completing_with_a_standing_fence_is_refused(standing: ToolEffect) -> None:
    run, claimed, _step = fenced(standing)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="fence stands"):
        run.complete(claimed, Payload.of(None))
    assert snapshot(run) == before


def test_completing_sees_an_attempt_whose_fence_was_emptied_by_hand() -> None:
    run, claimed, _step = fenced()
    empty_fence_by_hand(run)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="fence stands"):
        run.complete(claimed, Payload.of(None))
    assert snapshot(run) == before


def test_every_attempt_hands_out_the_same_idempotency_key() -> None:
    run, _claimed, first = fenced(REPEATABLE)
    expire(run)
    reap(run)
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=run.created_at)
    _run, again = claim(run)
    second = run.mark_pending_effect(again, call(effect=REPEATABLE))
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.idempotency_key == second.idempotency_key
    assert first.idempotency_key != idempotency_key(run.uuid, "another")


def test_a_run_with_a_fence_is_not_simply_given_back() -> None:
    run, held, step = fenced()
    assert run.give_back(held).reason is TerminationReason.INTERRUPTED_WRITE
    assert reread(run).pending_step_id == step.pk
    repeatable, held, _step = fenced(REPEATABLE)
    assert repeatable.give_back(held).action is Action.REQUEUE
    assert reread(repeatable).requeue_count == 1


def test_a_run_with_a_fence_is_not_parked() -> None:
    run, held, _step = fenced()
    run.ask(held, question())
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="fence stands"):
        run.suspend(held)
    assert snapshot(run) == before


ZOMBIE_ACTS: dict[str, Any] = {
    "renew": lambda run, held, step: run.renew(held),
    "stamp": lambda run, held, step: run.mark_pending_effect(held, call("another")),
    "record its write": lambda run, held, step: run.record_step(held, call(), returned(), step),
    "record a read": lambda run, held, step: run.record_step(held, call("read", READ), returned()),
    "complete": lambda run, held, step: run.complete(held, Payload.of(None)),
    "recover": lambda run, held, step: fail(run, held),
    "give back": lambda run, held, step: run.give_back(held),
    "suspend": lambda run, held, step: run.suspend(held),
}


@pytest.mark.parametrize("act", ZOMBIE_ACTS)
@pytest.mark.parametrize("fence", [REPEATABLE, None])
def test_refuses_a_zombie_of_an_older_epoch_with_the_same_owner_name(
    act: str, fence: ToolEffect | None
) -> None:
    run, old, step = fenced(REPEATABLE)
    expire(run)
    reap(run)
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=run.created_at)
    _run, new = claim(run, OWNER)
    assert (new.owner, new.epoch) == (old.owner, old.epoch + 1)
    if fence:
        run.mark_pending_effect(new, call(effect=fence))
    before = snapshot(run)
    with pytest.raises(LeaseLost):
        ZOMBIE_ACTS[act](run, old, step)
    assert snapshot(run) == before


@pytest.mark.parametrize("act", ZOMBIE_ACTS)
def test_refuses_another_owner_in_the_same_epoch(act: str) -> None:
    run, held, step = fenced()
    before = snapshot(run)
    with pytest.raises(LeaseLost):
        ZOMBIE_ACTS[act](run, Claim(run.pk, "somebody else", held.epoch), step)
    assert snapshot(run) == before


@pytest.mark.parametrize("act", ZOMBIE_ACTS)
def test_refuses_whoever_lost_a_run_that_was_dead_lettered(act: str) -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    before = snapshot(run)
    with pytest.raises(LeaseLost):
        ZOMBIE_ACTS[act](run, held, step)
    assert snapshot(run) == before


def test_a_lease_that_ran_out_but_that_nobody_took_is_still_ones_own() -> None:
    run, held, step = fenced()
    expire(run)
    run.renew(held)
    expire(run)
    run.record_step(held, call(), returned(), step)
    assert not AgentRun.objects.stale().exists()


# The second witness: what the journal says where somebody emptied the column by hand.


@pytest.mark.parametrize("state", [StepState.STARTED, StepState.UNCERTAIN])
def test_a_stamp_sees_an_attempt_whose_fence_was_emptied_by_hand(state: StepState) -> None:
    run, held, step = fenced()
    empty_fence_by_hand(run)
    Step.objects.filter(pk=step.pk).update(state=state)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="a fence stands"):
        run.mark_pending_effect(held, call("another"))
    assert snapshot(run) == before


@pytest.mark.parametrize("state", [StepState.STARTED, StepState.UNCERTAIN])
def test_the_verdict_sees_an_attempt_whose_fence_was_emptied_by_hand(state: StepState) -> None:
    run, _held, step = fenced()
    empty_fence_by_hand(run)
    Step.objects.filter(pk=step.pk).update(state=state)
    expire(run)
    assert reap(run).reason is TerminationReason.INTERRUPTED_WRITE
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)


def test_a_stamp_sees_a_fence_whose_attempt_was_emptied_by_hand() -> None:
    run, held, _step = fenced(REPEATABLE)
    AgentRun.objects.filter(pk=run.pk).write_guarded(pending_step=None)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="a fence stands"):
        run.mark_pending_effect(held, call("another"))
    assert snapshot(run) == before


def test_the_fences_own_attempt_is_in_doubt_before_one_that_was_added_by_hand() -> None:
    run, _held, step = fenced()
    added = step_of(run)
    added.pk, added.key, added._state.adding = None, "another", True
    added.save()
    assert reread(run).standing_fence() == (WRITE, step.pk)


def test_a_dead_letter_of_another_effect_leaves_its_attempt_in_flight() -> None:
    run, held, step = fenced(REPEATABLE)
    fail(run, held)
    assert reread(run).termination_reason == "not_retryable"
    assert step_of(run).state == StepState.STARTED == step.state


def test_the_verdict_sees_it_under_the_fence_of_another_write() -> None:
    run, _held, step = fenced()
    AgentRun.objects.filter(pk=run.pk).write_guarded(pending_effect=REPEATABLE)
    expire(run)
    assert reap(run).reason is TerminationReason.INTERRUPTED_WRITE
    assert reread(run).pending_step_id == step.pk


def put_back_by_hand(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        status=RunStatus.QUEUED,
        claimed_by="",
        lease_expires_at=None,
        pending_effect="",
        pending_step=None,
        termination_reason="",
        finished_at=None,
    )


def test_a_claim_sees_it_and_dead_letters_instead() -> None:
    run, _held, step = fenced()
    put_back_by_hand(run)
    assert AgentRun.objects.claim(run.uuid, OWNER) is None
    row = reread(run)
    assert (row.status, row.termination_reason) == ("failed", "interrupted_write")
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)
    assert step_of(run).state == StepState.UNCERTAIN


def test_a_cancel_sees_it_and_does_not_hide_it() -> None:
    run, _held, step = fenced()
    put_back_by_hand(run)
    assert run.cancel(by="somebody") == RunStatus.FAILED
    row = reread(run)
    assert (row.termination_reason, row.pending_step_id) == ("interrupted_write", step.pk)


def test_a_retry_sees_it() -> None:
    run, _step = dead_lettered_write()
    empty_fence_by_hand(run)
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        run.retry(by="somebody")
    assert snapshot(run) == before


def test_the_attempt_is_found_where_its_reference_was_emptied_by_hand() -> None:
    run, step = dead_lettered_write()
    AgentRun.objects.filter(pk=run.pk).write_guarded(pending_step=None)
    assert reread(run).standing_fence() == (WRITE, step.pk)


@pytest.mark.parametrize("state", [StepState.RECORDED, StepState.NOT_APPLIED])
def test_an_attempt_with_a_record_or_a_verdict_is_no_fence(state: StepState) -> None:
    run, _held, step = fenced()
    recorded_key = step.key if state is StepState.RECORDED else None
    Step.objects.filter(pk=step.pk).update(state=state, recorded_key=recorded_key)
    empty_fence_by_hand(run)
    expire(run)
    assert reap(run).action is Action.REQUEUE


@pytest.mark.parametrize("effect", [READ, REPEATABLE, TRANSACTIONAL])
def test_an_unfinished_attempt_of_another_effect_is_no_fence(effect: ToolEffect) -> None:
    run, held = running()
    Step.of(run, held, call(effect=effect), 1, state=StepState.STARTED).save()
    expire(run)
    assert reap(run).action is Action.REQUEUE


# An earlier attempt that reports that it landed.


def landed_late(effect: ToolEffect = WRITE) -> tuple[AgentRun, Claim]:
    """A run claimed again after 'it did not happen', whose first worker then said that it did."""
    run, old, step = fenced(effect)
    expire(run)
    reap(run)
    row = reread(run)
    if effect is WRITE:
        row.resolve(
            Resolution.DID_NOT_HAPPEN,
            by="somebody",
            reason="told so",
            digest=row.resolution_digest(),
            worker_may_act_confirmed=True,
        )
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=run.created_at)
    _run, new = claim(run)
    run.add_late_evidence(old, step, returned({"id": 7}))
    return run, new


def test_a_new_attempt_is_refused_where_an_earlier_one_reports_that_it_landed() -> None:
    run, held = landed_late()
    with pytest.raises(LeaseLost, match="landed"):
        run.mark_pending_effect(held, call())
    row = reread(run)
    assert (row.status, row.termination_reason) == ("failed", "interrupted_write")
    assert row.pending_step_id == step_of(run).pk
    assert step_of(run).attempt == 1


def test_an_idempotent_write_is_repeated_although_it_landed() -> None:
    run, held = landed_late(REPEATABLE)
    assert run.mark_pending_effect(held, call(effect=REPEATABLE)).attempt == 2


def test_evidence_about_another_step_forbids_nothing() -> None:
    run, held = landed_late()
    assert run.mark_pending_effect(held, call("another")).attempt == 1


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("before", "within"), [("off", "on"), ("local", "local"), ("on", "on")])
def test_a_stamp_reaches_the_disk_where_commits_are_not_flushed(before: str, within: str) -> None:
    def setting() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            return str(cursor.fetchone()[0])

    with connection.cursor() as cursor:
        cursor.execute(f"SET synchronous_commit = {before}")
    try:
        with transaction.atomic():
            flush_commits()
            assert setting() == within
        assert setting() == before
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET synchronous_commit")


@pytest.mark.postgres
def test_the_stamp_is_such_a_transaction() -> None:
    run, held = running()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
            " NEW.late_error := current_setting('synchronous_commit'); RETURN NEW; END$$;"
            "CREATE TRIGGER witness BEFORE INSERT ON agentruns_step FOR EACH ROW"
            " EXECUTE FUNCTION witness(); SET LOCAL synchronous_commit = off"
        )
    step = run.mark_pending_effect(held, call())
    assert Step.objects.get(pk=step.pk).late_error == "on"


def test_a_result_of_each_outcome_can_be_recorded() -> None:
    run, held = running()
    for outcome in StepOutcome:
        run.record_step(held, call(outcome, READ), Ending(outcome, None, "why"))
    assert Step.objects.filter(run=run).count() == len(StepOutcome)


def test_a_queued_run_has_no_fence() -> None:
    assert reread(queued()).standing_fence() == ("", None)
