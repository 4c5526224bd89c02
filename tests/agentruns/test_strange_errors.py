"""What becomes of a run whose code raised an exception that fails, lies or has no end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentruns import api
from agentruns.enums import EventKind, StepOutcome, StepState, TerminationReason
from agentruns.exceptions import RunFailed
from agentruns.models import AgentRun
from agentruns.segment import Segment
from agentruns.tracebacks import LONGEST, told_traceback
from tests.agentruns.cases import conf
from tests.factories import READ, WRITE, executed
from tests.project.agents import raises, raises_on_a_loop
from tests.project.strange_errors import STRANGE

pytestmark = pytest.mark.django_db(transaction=True)

each_error = pytest.mark.parametrize("which", STRANGE)
each_way = pytest.mark.parametrize("agent", [raises, raises_on_a_loop])
# Lines of ours around a traceback.
MORE = 1_000


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """What was said about the failure, as any handler would write it."""
    runner = [record for record in caplog.records if record.name == "agentruns.runner"]
    (record,) = [record for record in runner if "failed with" in record.getMessage()]
    return logging.Formatter().format(record)


@each_error
@each_way
@pytest.mark.parametrize("effect", ["", READ])
def test_it_fails_the_run_and_is_shown(
    caplog: pytest.LogCaptureFixture, which: str, effect: str, agent: Any
) -> None:
    run = executed(agent, request=[which, effect])
    assert (run.status, run.termination_reason) == ("failed", TerminationReason.NOT_RETRYABLE)
    assert run.error_class
    assert 0 < len(run.error_message) <= 2000
    assert run.pending_effect == ""
    text = logged(caplog)
    assert run.error_class in text
    assert "in act" in text if effect else "in raises" in text
    assert len(text) < LONGEST + MORE


@each_error
@each_way
def test_in_a_write_it_leaves_the_fence_and_the_worker_may_act(
    caplog: pytest.LogCaptureFixture, which: str, agent: Any
) -> None:
    run = executed(agent, request=[which, WRITE])
    assert (run.status, run.termination_reason) == ("failed", TerminationReason.INTERRUPTED_WRITE)
    step = run.journal().get()
    assert run.standing_fence() == (WRITE, step.pk)
    assert (step.state, step.outcome) == (StepState.UNCERTAIN, StepOutcome.RAISED)
    assert run.former_worker_may_act()
    assert "in act" in logged(caplog)


@each_error
def test_redacted_it_is_shown_in_our_own_words(
    caplog: pytest.LogCaptureFixture, which: str
) -> None:
    with conf(REDACT="tests.agentruns.test_strange_errors.as_it_is"):
        run = executed(raises, request=[which, READ])
    assert run.error_class in logged(caplog)


def as_it_is(what: str, value: Any) -> Any:
    return value


@each_error
def test_a_live_caller_gets_it(which: str) -> None:
    with pytest.raises(RunFailed) as raised:
        api.run("raises", [which, READ])
    assert raised.value.__cause__ is not None


def test_the_text_of_a_long_chain_says_what_is_nearest_and_that_there_is_more() -> None:
    text = told_traceback(STRANGE["chain"]())
    assert text.endswith("a long chain (1 sub-exception)")
    assert "number 4999" in text
    assert "number 1000" not in text
    assert "errors before these" in text


class FalseExit(SystemExit):
    def __len__(self) -> int:
        return 0


def test_an_exit_that_counts_as_false_is_the_reason_whatever_is_raised_instead() -> None:
    def leave(key: str) -> Any:
        raise FalseExit(1)

    def agent(segment: Segment) -> Any:
        try:
            segment.step("read", leave, effect=READ)
        except SystemExit as error:
            raise ValueError("instead") from error

    with pytest.raises(FalseExit):
        executed(agent)
    assert AgentRun.objects.get().status == "queued"


def test_an_interrupt_before_the_bodys_end_is_noted_does_not_make_it_count_as_over() -> None:
    """As a signal may, at any instruction."""
    told.clear()

    def agent(segment: Segment) -> Any:
        return segment.step("write", lambda key: 1 // 0, effect=WRITE)

    with (
        conf(REDACT="tests.agentruns.test_strange_errors.exits_once"),
        pytest.raises(SystemExit),
    ):
        executed(agent)
    run = AgentRun.objects.get()
    assert run.termination_reason == TerminationReason.INTERRUPTED_WRITE
    event = run.history().get(kind=EventKind.DEAD_LETTERED)
    assert event.details["worker_ended"] is False
    assert run.former_worker_may_act()


told: list[Any] = []


def exits_once(what: str, value: Any) -> Any:
    told.append(value)
    if len(told) == 1:
        raise SystemExit(1)
    return value
