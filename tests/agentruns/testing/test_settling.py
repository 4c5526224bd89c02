from __future__ import annotations

import pytest
from django.db.models.functions import Now

from agentruns.api import enqueue, status
from agentruns.enums import RunStatus, TerminationReason, ToolEffect
from agentruns.exceptions import RunNotFound
from agentruns.guard import from_now
from agentruns.models import AgentRun
from agentruns.segment import Segment
from agentruns.testing import LeaseClock, NotSettled, run_until_settled
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nobody_is_woken(settings: object) -> None:
    path = "agentruns.testing.lanes.NobodyIsWoken"
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": path}  # type: ignore[attr-defined]


def stale(uuid: object) -> bool:
    return bool(AgentRun.objects.filter(uuid=uuid, lease_expires_at__lt=Now()).exists())


def test_executes_a_run_that_is_to_begin_later() -> None:
    accepted = enqueue("echo", "hello", delay_seconds=3600)
    state = run_until_settled(accepted.uuid)
    assert (state.status, state.output) == (RunStatus.COMPLETED, "hello")


def test_reaps_what_a_dead_worker_left_and_goes_on() -> None:
    run = factories.queued("echo")
    factories.claim(run)
    assert run_until_settled(run.uuid).status is RunStatus.COMPLETED
    assert factories.history(run) == [
        "queued", "claimed", "lease_lost", "requeued", "claimed", "completed",
    ]  # fmt: skip


def test_gives_back_a_run_that_was_interrupted_in_a_write() -> None:
    run, _claimed, _step = factories.fenced()
    state = run_until_settled(run.uuid)
    assert state.uncertain
    assert state.reason == TerminationReason.INTERRUPTED_WRITE


def test_stops_where_a_person_is_needed() -> None:
    def asks(segment: Segment) -> object:
        return segment.step("ask", lambda key: None, needs_approval=True)

    with factories.registered(asks) as agent:
        state = run_until_settled(enqueue(agent, "x").uuid)
    assert state.status is RunStatus.WAITING_FOR_APPROVAL


def test_gives_up_on_a_run_that_does_not_end() -> None:
    run = factories.queued("echo")
    with pytest.raises(NotSettled, match="after 3 segments"):
        run_until_settled(run.uuid, execute=lambda uuid: None, max_segments=3)


def test_there_must_be_such_a_run() -> None:
    with pytest.raises(RunNotFound):
        run_until_settled("00000000-0000-0000-0000-000000000000")


def test_the_clock_moves_a_lease_and_nothing_else() -> None:
    run = factories.queued("echo")
    factories.claim(run)
    clock = LeaseClock(run.uuid)
    clock.advance(1)
    assert not stale(run.uuid)
    clock.advance(3600)
    assert stale(run.uuid)
    AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=from_now(60))
    clock.run_out()
    assert stale(run.uuid)
    assert status(run.uuid).status is RunStatus.RUNNING


def test_the_clock_leaves_a_settled_run_alone() -> None:
    run = factories.queued("echo")
    run_until_settled(run.uuid)
    before = factories.snapshot(run)
    LeaseClock(run.uuid).run_out()
    LeaseClock(run.uuid).make_due()
    assert factories.snapshot(run) == before


def test_an_idempotent_write_is_executed_again_with_its_key() -> None:
    keys = []

    def charges(segment: Segment) -> object:
        def charge(key: str) -> None:
            keys.append(key)
            if len(keys) == 1:
                raise ConnectionError("503")

        return segment.step("charge", charge, effect=ToolEffect.IDEMPOTENT_WRITE)

    with factories.registered(charges) as agent:
        assert run_until_settled(enqueue(agent, "x").uuid).status is RunStatus.COMPLETED
    assert len(keys) == 2
    assert len(set(keys)) == 1
