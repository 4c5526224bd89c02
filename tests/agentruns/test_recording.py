"""The record of a step that the database refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, DataError, OperationalError, ProgrammingError, connection

from agentruns import execution, hotpath
from agentruns.enums import RunStatus, StepOutcome, TerminationReason, ToolEffect
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.factories import READ, REPEATABLE, WRITE, execute_again, executed, step_of

pytestmark = pytest.mark.django_db(transaction=True)

POOLER = ProgrammingError('prepared statement "_pg3_1" does not exist')


class Refusals:
    """Has the database refuse the records of one step: the first ones, or all of them (-1)."""

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception, times: int) -> None:
        self.left = times
        record = hotpath.record

        def refusing(run: AgentRun, claim: Any, call: Any, *rest: Any) -> bool:
            if call.key == "step" and self.left:
                self.left -= 1
                raise error
            return record(run, claim, call, *rest)

        patch.setattr(hotpath, "record", refusing)


@pytest.mark.parametrize("effect", [READ, REPEATABLE, WRITE])
@pytest.mark.parametrize("error", [POOLER, DatabaseError("what?"), OperationalError("away")])
def test_what_says_nothing_about_the_value_is_recorded_on_another_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception, effect: ToolEffect
) -> None:
    refusals = Refusals(monkeypatch, error, times=2)
    bodies: list[str] = []
    run = executed(lambda segment: segment.step("step", bodies.append, effect=effect))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert (len(bodies), refusals.left) == (1, 0)
    assert step_of(run, "step").outcome == StepOutcome.RETURNED


def test_a_write_that_is_never_recorded_leaves_its_fence_and_evidence(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "RECORD_RETRY_SECONDS": 0.1}
    Refusals(monkeypatch, POOLER, times=-1)
    run = executed(lambda segment: segment.step("step", lambda key: "done", effect=WRITE))
    assert run.termination_reason == TerminationReason.INTERRUPTED_WRITE
    assert step_of(run, "step").late_outcome == StepOutcome.RETURNED


def test_a_read_that_is_never_recorded_is_no_failure_that_code_can_go_on_from(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "RECORD_RETRY_SECONDS": 0.1}
    Refusals(monkeypatch, POOLER, times=-1)

    def agent(segment: Segment) -> Any:
        try:
            return segment.step("step", lambda key: "done", effect=READ)
        except Exception:
            return segment.step("instead", lambda key: "done", effect=WRITE)

    run = executed(agent)
    assert run.status == RunStatus.FAILED
    assert not Step.objects.filter(run=run, key="instead").exists()


def test_a_value_that_the_database_refuses_landed_without_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Refusals(monkeypatch, DataError("too long"), times=1)
    run = executed(lambda segment: segment.step("step", lambda key: "done", effect=WRITE))
    assert run.error_class == "LandedWithoutResult"
    assert step_of(run, "step").outcome == StepOutcome.LANDED_WITHOUT_RESULT


def test_a_stamp_is_tried_again_after_a_failure_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stamp, left = hotpath.stamp, [POOLER, POOLER]

    def failing(*args: Any) -> Step:
        if left:
            raise left.pop()
        return stamp(*args)

    monkeypatch.setattr(hotpath, "stamp", failing)
    bodies: list[str] = []
    run = executed(lambda segment: segment.step("step", bodies.append, effect=WRITE))
    assert (run.status, len(bodies), left) == (RunStatus.COMPLETED, 1, []), run.error_message


def test_a_replay_that_meets_such_a_failure_is_not_taken_for_the_end_of_the_step(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "RECORD_RETRY_SECONDS": 0.1}

    def reads(segment: Segment) -> Any:
        segment.step("step", lambda key: "done", effect=READ)
        raise ConnectionResetError

    def agent(segment: Segment) -> Any:
        try:
            return segment.step("step", lambda key: "done", effect=READ)
        except Exception:
            return segment.step("instead", lambda key: "done", effect=WRITE)

    run = executed(reads)
    with monkeypatch.context() as patch:
        patch.setattr(execution, "read_result", lambda *args: (_ for _ in ()).throw(POOLER))
        run = execute_again(run, agent)
    assert run.status == RunStatus.FAILED
    assert not Step.objects.filter(run=run, key="instead").exists()


@pytest.mark.postgres
def test_a_prepared_statement_that_a_pooler_lost_is_such_an_error() -> None:
    with pytest.raises(ProgrammingError, match="does not exist"), connection.cursor() as cursor:
        cursor.execute("EXECUTE _pg3_1")
