"""Each promise, broken on purpose, is noticed."""

from __future__ import annotations

import pytest

from agentruns.enums import EventKind, Resolution, StepState, ToolEffect
from agentruns.exceptions import LeaseLost
from agentruns.models import AgentRun, Event, Step
from agentruns.testing import Body, assert_at_most_once, counted_bodies, run_until_settled
from agentruns.testing.invariants import broken_promises
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

WRITE = str(ToolEffect.NON_IDEMPOTENT_WRITE)


def body(key: str = "write", effect: str = WRITE, idempotency_key: str = "k") -> Body:
    return Body(key, key, effect, idempotency_key)


@pytest.fixture
def interrupted() -> AgentRun:
    return factories.dead_lettered_write()[0]


def test_a_run_that_kept_its_promises(interrupted: AgentRun) -> None:
    assert_at_most_once(interrupted.uuid, [body()])


def test_a_body_that_was_started_twice(interrupted: AgentRun) -> None:
    with pytest.raises(AssertionError, match="was started 2 times"):
        assert_at_most_once(interrupted.uuid, [body(), body()])
    assert_at_most_once(interrupted.uuid, [body(), body()], did_not_happen=1)


def test_a_read_may_be_repeated_with_the_same_key(interrupted: AgentRun) -> None:
    read = body("read", str(ToolEffect.READ_ONLY))
    assert broken_promises(interrupted.uuid, [read, read]) == []
    other = body("read", str(ToolEffect.READ_ONLY), "another")
    (broken,) = broken_promises(interrupted.uuid, [read, other])
    assert "another idempotency key" in broken


def test_a_write_of_which_the_journal_knows_nothing(interrupted: AgentRun) -> None:
    (broken,) = broken_promises(interrupted.uuid, [body("other", idempotency_key="l")])
    assert "does not know of it" in broken


def test_a_fence_that_is_gone(interrupted: AgentRun) -> None:
    factories.empty_fence_by_hand(interrupted)
    (broken,) = broken_promises(interrupted.uuid, [])
    assert "was cleared without a recorded outcome" in broken


def test_a_write_that_is_uncertain_in_a_run_that_completed() -> None:
    run = factories.queued("echo")
    run_until_settled(run.uuid)
    _other, step = factories.dead_lettered_write()
    Step.objects.filter(pk=step.pk).update(run=run)
    broken = "; ".join(broken_promises(run.uuid, []))
    assert "is uncertain" in broken
    assert "the fence of write was cleared" in broken


def test_a_write_that_was_called_not_applied_and_reported_as_landed_is_in_doubt() -> None:
    run, held, step = factories.fenced()
    factories.expire(run)
    factories.reap(run)
    row = factories.reread(run)
    row.resolve(
        Resolution.DID_NOT_HAPPEN,
        by="an operator",
        reason="not seen",
        digest=row.resolution_digest(),
        worker_may_act_confirmed=True,
    )
    run.add_late_evidence(held, step, factories.returned())
    again, held_again = factories.claim(factories.reread(run))
    with pytest.raises(LeaseLost, match="landed"):
        again.mark_pending_effect(held_again, factories.call())
    assert broken_promises(run.uuid, [body()]) == []


def test_a_dead_letter_whose_write_is_not_in_the_journal(interrupted: AgentRun) -> None:
    Step.objects.filter(run=interrupted).update(state=StepState.NOT_APPLIED)
    (broken,) = broken_promises(interrupted.uuid, [])
    assert "that the journal does not have" in broken


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (EventKind.QUEUED, "begin with one acceptance"),
        (EventKind.CLAIMED, "claims []"),
        (EventKind.DEAD_LETTERED, "the history says otherwise"),
    ],
)
def test_a_history_with_a_gap(interrupted: AgentRun, lost: EventKind, said: str) -> None:
    Event.objects.filter(run=interrupted, kind=lost).delete()
    assert said in "; ".join(broken_promises(interrupted.uuid, []))


@pytest.mark.parametrize(
    ("twice", "said"),
    [(EventKind.CLAIMED, "claims [1, 1]"), (EventKind.DEAD_LETTERED, "settled twice")],
)
def test_a_history_that_says_something_twice(
    interrupted: AgentRun, twice: EventKind, said: str
) -> None:
    event = Event.objects.get(run=interrupted, kind=twice)
    event.pk = None
    event._state.adding = True
    event.save(force_insert=True)
    assert said in "; ".join(broken_promises(interrupted.uuid, []))


def test_counts_the_bodies_of_this_process_while_it_is_asked_to() -> None:
    with counted_bodies() as bodies:
        run = factories.queued("one_write")
        run_until_settled(run.uuid)
    run_until_settled(factories.queued("one_write").uuid)
    assert [body.name for body in bodies] == ["read_before", "write", "read_after"]
    assert_at_most_once(run.uuid, bodies)
