from __future__ import annotations

import pytest

from agentruns.enums import Resolution, StepOutcome
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step
from agentruns.models.step import Ending
from agentruns.models.worker import is_same
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    OWNER,
    READ,
    WRITE,
    claim,
    executed,
    expire,
    fenced,
    history,
    lose,
    queued,
    reap,
    registered,
    reread,
    returned,
    snapshot,
    step_of,
)

pytestmark = pytest.mark.django_db


def test_what_a_zombie_learnt_is_kept_and_the_run_stays_as_it_is() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    before = AgentRun.objects.filter(pk=run.pk).values().get()
    run.add_late_evidence(held, step, returned({"id": 7}))
    stored = step_of(run)
    assert AgentRun.objects.filter(pk=run.pk).values().get() == before
    assert (stored.late_outcome, stored.landed_late) == (StepOutcome.RETURNED, True)
    assert stored.late_result is not None
    assert stored.late_result.value == {"id": 7}
    assert (stored.state, stored.result) == ("uncertain", None)
    assert history(run)[-1] == "late_evidence"


def test_the_event_is_of_the_epoch_in_which_the_write_began() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    run.add_late_evidence(held, step, Ending(StepOutcome.RAISED, None, "it raised"))
    last = run.history().latest("pk")
    assert (last.epoch, last.actor) == (held.epoch, OWNER)


def test_a_body_that_raised_is_no_evidence_that_it_landed() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    run.add_late_evidence(
        held, step, Ending(StepOutcome.RAISED, None, "ConnectionResetError: \x00")
    )
    stored = step_of(run)
    assert (stored.late_outcome, stored.landed_late) == ("raised", False)
    assert stored.late_error == "ConnectionResetError: �"


@pytest.mark.parametrize(
    ("outcome", "landed"),
    [
        (StepOutcome.RETURNED, True),
        (StepOutcome.LANDED_WITHOUT_RESULT, True),
        (StepOutcome.EFFECT_NOT_APPLIED, False),
    ],
)
def test_evidence_says_whether_it_landed(outcome: StepOutcome, landed: bool) -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    run.add_late_evidence(held, step, Ending(outcome))
    assert step_of(run).landed_late is landed


def test_the_first_evidence_stays() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    run.add_late_evidence(held, step, returned(1))
    before = snapshot(run)
    run.add_late_evidence(held, step, Ending(StepOutcome.RAISED, None, "something else"))
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("evidence", "kept"),
    [
        (returned(1), False),
        (returned(2), True),
        (Ending(StepOutcome.RETURNED), True),
        (Ending(StepOutcome.EFFECT_NOT_APPLIED, returned(1).result), True),
    ],
)
def test_evidence_against_what_a_person_recorded_is_kept(evidence: Ending, kept: bool) -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    row = reread(run)
    row.resolve(
        Resolution.HAPPENED,
        by="somebody",
        reason="told so",
        digest=row.resolution_digest(),
        result=returned(1).result,
    )
    before = snapshot(run)
    run.add_late_evidence(held, step, evidence)
    assert (snapshot(run) != before) is kept
    assert (step_of(run).state, step_of(run).result) == ("recorded", returned(1).result)


@pytest.mark.parametrize(("owner", "epoch"), [("somebody else", 1), (OWNER, 2)])
def test_only_the_segment_that_began_the_write_gives_evidence(owner: str, epoch: int) -> None:
    run, _held, step = fenced()
    expire(run)
    reap(run)
    before = snapshot(run)
    run.add_late_evidence(Claim(run.pk, owner, epoch), step, returned(1))
    assert snapshot(run) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("raises", [False, True])
def test_a_segment_that_lost_its_run_in_the_body_leaves_evidence(raises: bool) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        def write(key: str) -> dict[str, str]:
            bodies.append("write")
            lose(segment.run)
            if raises:
                raise ConnectionResetError("no answer")
            return {"sent": key}

        try:
            segment.step("write", write, effect=WRITE)
        finally:
            segment.step("after", lambda key: bodies.append("after"), effect=READ)

    run = executed(agent)
    assert (run.status, run.termination_reason) == ("failed", "interrupted_write")
    assert bodies == ["write"]
    stored = step_of(run)
    assert stored.state == "uncertain"
    if raises:
        assert (stored.late_outcome, stored.landed_late) == ("raised", False)
        assert "no answer" in stored.late_error
    else:
        assert stored.landed_late
        assert stored.late_result is not None
        assert stored.late_result.value == {"sent": stored.idempotency_key}


@pytest.mark.django_db(transaction=True)
def test_a_segment_whose_run_was_claimed_again_changes_nothing_of_it() -> None:
    """The new segment has the same owner name, as after a restart in a container."""

    def agent(segment: Segment) -> None:
        def read(key: str) -> str:
            lose(segment.run)
            AgentRun.objects.filter(pk=segment.run.pk).write_guarded(
                available_at=segment.run.created_at
            )
            claim(segment.run, segment.claim.owner)
            return "read"

        segment.step("read", read, effect=READ)

    run = executed(agent)
    assert (run.status, run.claim_epoch) == ("running", 2)
    assert not Step.objects.filter(run=run).exists()


@pytest.mark.django_db(transaction=True)
def test_a_run_that_was_deleted_under_its_worker_ends_its_segment_quietly() -> None:
    deleted = []

    def agent(segment: Segment) -> None:
        def write(key: str) -> str:
            AgentRun.objects.filter(pk=segment.run.pk).delete()
            deleted.append(segment.run.pk)
            return "sent"

        segment.step("write", write, effect=WRITE)

    with registered(agent) as name:
        run = queued(name)
        execute(str(run.uuid))
    assert deleted == [run.pk]
    assert not AgentRun.objects.exists()


def test_no_value_is_the_same_as_no_value_alone() -> None:
    null = Payload.of(None)
    assert is_same(None, None)
    assert is_same(null, Payload.of(None))
    assert not is_same(None, null)
    assert not is_same(null, None)
