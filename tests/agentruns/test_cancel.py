from __future__ import annotations

import pytest

from agentruns.api import cancel, enqueue
from agentruns.enums import WAITING, RunStatus, StepState, ToolEffect
from agentruns.exceptions import RunNotFound, TransitionRefused
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import Step
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    READ,
    REPEATABLE,
    WRITE,
    call,
    expire,
    fail,
    fenced,
    history,
    queued,
    reap,
    registered,
    reread,
    reread_by_uuid,
    returned,
    running,
    snapshot,
    with_status,
)

pytestmark = pytest.mark.django_db


def test_a_run_without_a_fence_is_cancelled_at_once() -> None:
    run, _held = running()
    assert cancel(run.uuid, by="somebody") is RunStatus.CANCELLED
    row = reread(run)
    assert (row.status, row.termination_reason) == ("cancelled", "cancelled")
    assert row.cancel_requested_at is not None
    assert row.finished_at is not None
    assert history(run) == ["queued", "claimed", "cancelled"]


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE])
def test_under_a_fence_only_the_request_is_written(effect: ToolEffect) -> None:
    run, held, step = fenced(effect)
    assert cancel(run.uuid, by="somebody") is RunStatus.RUNNING
    row = reread(run)
    assert (row.status, row.pending_effect, row.pending_step_id) == ("running", effect, step.pk)
    assert row.cancel_requested_at is not None
    assert history(run)[-1] == "cancel_asked"
    run.renew(held)


@pytest.mark.parametrize("status", [RunStatus.QUEUED, *sorted(WAITING)])
def test_a_write_in_doubt_that_only_the_journal_shows_is_not_hidden(status: RunStatus) -> None:
    run = with_status(status)
    claimed = Claim(run.pk, "somebody", run.claim_epoch)
    Step.of(run, claimed, call(effect=WRITE), 1, state=StepState.STARTED).save()
    assert cancel(run.uuid, by="somebody") is RunStatus.FAILED
    row = reread(run)
    assert row.termination_reason == "interrupted_write"
    assert row.standing_fence()[0] == WRITE


def test_asking_twice_is_asking_once() -> None:
    run, _held, _step = fenced()
    cancel(run.uuid, by="one")
    before = snapshot(run)
    cancel(run.uuid, by="two")
    assert snapshot(run) == before


def test_cancelling_a_cancelled_run_changes_nothing() -> None:
    run = with_status(RunStatus.CANCELLED)
    before = snapshot(run)
    assert cancel(run.uuid) is RunStatus.CANCELLED
    assert snapshot(run) == before


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
def test_a_settled_run_is_not_cancelled(status: RunStatus) -> None:
    run = with_status(status)
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        cancel(run.uuid)
    assert snapshot(run) == before


def test_a_worker_that_dies_in_the_write_after_the_request_leaves_an_interrupted_write() -> None:
    run, _held, _step = fenced()
    cancel(run.uuid)
    expire(run)
    reap(run)
    assert reread(run).termination_reason == "interrupted_write"


def test_a_worker_that_dies_in_an_idempotent_write_after_the_request_leaves_a_cancelled_run() -> (
    None
):
    run, _held, _step = fenced(REPEATABLE)
    cancel(run.uuid)
    expire(run)
    reap(run)
    row = reread(run)
    assert (row.status, row.pending_effect) == ("cancelled", "")


def test_a_segment_that_fails_after_the_request_leaves_a_cancelled_run() -> None:
    run, held, step = fenced()
    cancel(run.uuid)
    run.record_step(held, call(), returned(), step)
    fail(run, held, ConnectionResetError())
    assert reread(run).status == "cancelled"


def test_a_run_that_completes_after_the_request_is_cancelled() -> None:
    run, held, step = fenced()
    cancel(run.uuid)
    run.record_step(held, call(), returned(), step)
    run.complete(held, Payload.of("an output"))
    row = reread(run)
    assert (row.status, row.output) == ("cancelled", None)


def test_a_run_that_is_given_back_after_the_request_is_cancelled() -> None:
    run, held, step = fenced()
    cancel(run.uuid)
    run.record_step(held, call(), returned(), step)
    run.give_back(held)
    assert reread(run).status == "cancelled"


@pytest.mark.parametrize("uuid", ["nonsense", "00000000-0000-0000-0000-000000000000"])
def test_a_run_that_does_not_exist_is_not_found(uuid: str) -> None:
    with pytest.raises(RunNotFound):
        cancel(uuid)


@pytest.mark.django_db(transaction=True)
def test_a_write_in_flight_is_recorded_and_then_the_run_is_cancelled() -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        def write(key: str) -> str:
            bodies.append("write")
            cancel(segment.run.uuid, by="somebody")
            return "sent"

        segment.step("write", write, effect=WRITE)
        segment.step("after", lambda key: bodies.append("after"), effect=READ)

    with registered(agent) as name:
        accepted = enqueue(name)
        execute(str(accepted.uuid))
    run = reread_by_uuid(accepted.uuid)
    assert (run.status, run.pending_effect) == ("cancelled", "")
    assert bodies == ["write"]
    assert run.journal().recorded().get().key == "write"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("effect", [READ, WRITE])
def test_nothing_starts_in_a_run_that_was_cancelled_between_two_steps(effect: ToolEffect) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        segment.step("before", lambda key: bodies.append("before"), effect=READ)
        cancel(segment.run.uuid)
        segment.step("after", lambda key: bodies.append("after"), effect=effect)

    with registered(agent) as name:
        accepted = enqueue(name)
        execute(str(accepted.uuid))
    run = reread_by_uuid(accepted.uuid)
    assert run.status == "cancelled"
    assert [step.key for step in run.journal().recorded()] == ["before"]
    if effect == WRITE:
        assert bodies == ["before"]


def test_a_queued_run_is_never_claimed_after_its_cancel() -> None:
    run = queued()
    cancel(run.uuid)
    execute(str(run.uuid))
    assert reread(run).status == "cancelled"
