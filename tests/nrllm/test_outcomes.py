from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelHTTPError, ToolFailed
from pydantic_ai.messages import ModelRequest, ToolReturnPart

from agentruns.enums import RunStatus, StepOutcome, StepState, TerminationReason, ToolEffect
from agentruns.models import AgentRun
from nrllm import EffectLanded, EffectNotApplied, effect, register_agent
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    output,
    says,
    step_named,
    steps,
)
from tests.project.models import LedgerEntry
from tests.project.strange_errors import STRANGE
from tests.strange import circular

pytestmark = pytest.mark.usefixtures("settings_for_runs")

NON_IDEMPOTENT = ToolEffect.NON_IDEMPOTENT_WRITE
IDEMPOTENT = ToolEffect.IDEMPOTENT_WRITE
TRANSACTIONAL = ToolEffect.TRANSACTIONAL_WRITE


# Pydantic AI looks at them itself: what they raise then is a real exit, and costs a retry.
EXITS_WHEN_LOOKED_AT = {
    "class exits",
    "cause interrupts",
    "context fails",
    "suppression fails",
    "attributes fail",
    "notes fail",
}


class Address(BaseModel):
    street: str


def raises_validation_error() -> None:
    Address.model_validate({})


def throws(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


def one_tool(
    body: Callable[[], Any],
    declared: ToolEffect = NON_IDEMPOTENT,
    *,
    failures: dict[int, list[Exception]] | None = None,
    turns: int = 1,
    **declaration: Any,
) -> tuple[Scripted, list[str]]:
    """Register an agent whose model calls one tool, `act`, and then says 'ok'."""
    asked = [calls(called("act", f"call-{turn}")) for turn in range(turns)]
    model = Scripted(*asked, says("ok"), failures=failures)
    agent = Agent(model.model, name="actor")
    done: list[str] = []

    @agent.tool_plain
    @effect(declared, **declaration)
    def act() -> Any:
        done.append("act")
        return body()

    register_agent("actor", agent)
    return model, done


def told(model: Scripted) -> list[Any]:
    """What the model was told by tools, in its last request."""
    return [
        part.content
        for message in model.asked[-1]
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def test_tool_failed_is_recorded_and_told_to_the_model() -> None:
    model, _done = one_tool(throws(ToolFailed("no such mailbox")))
    run = execute(accept("actor"))
    assert run.status == RunStatus.COMPLETED
    assert step_named(run, "act").state == StepState.RECORDED
    assert run.pending_effect == ""
    assert told(model) == ["no such mailbox"]


def test_effect_not_applied_clears_the_fence_and_asks_the_model_again() -> None:
    model, done = one_tool(
        throws(EffectNotApplied("give a street")), failures={1: [ModelHTTPError(503, "m")]}
    )
    run = execute(accept("actor"))
    assert run.pending_effect == ""
    assert step_named(run, "act").outcome == StepOutcome.EFFECT_NOT_APPLIED
    run = execute(run)
    assert run.status == RunStatus.COMPLETED
    assert done == ["act"], "a replay gives the same answer without the body"
    assert "give a street" in str(model.asked[-1])


@pytest.mark.parametrize(
    "answer",
    [None, {"try": "later"}, object(), circular(), b"\xff", 10**5000],
    ids=["none", "json", "no json", "circular", "bytes", "huge"],
)
def test_effect_not_applied_is_certain_whatever_its_answer(answer: Any) -> None:
    one_tool(throws(EffectNotApplied(answer)))
    run = execute(accept("actor"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert step_named(run, "act").outcome == StepOutcome.EFFECT_NOT_APPLIED


UNCLEAR = {
    "a plain ModelRetry": throws(ModelRetry("again")),
    "approval asked after the act": throws(ApprovalRequired()),
    "a deferral after the act": throws(CallDeferred()),
    "a validation error inside the body": raises_validation_error,
    "any exception": throws(RuntimeError("broken")),
    "an exit of the process": throws(SystemExit(3)),
    "a timeout of its own": throws(TimeoutError()),
}


@pytest.mark.parametrize("body", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_an_end_that_says_nothing_leaves_the_fence_standing(body: Callable[[], Any]) -> None:
    model, _done = one_tool(body)
    run = execute_past_exits(accept("actor"))
    assert run.status == RunStatus.FAILED
    assert fenced(run).state == StepState.UNCERTAIN
    assert len(model.asked) == 1, "the model is not told to try again"


@pytest.mark.parametrize("error", [RuntimeError("broken"), ModelRetry("again")], ids=type)
def test_a_function_that_raised_may_have_left_something_behind(error: Exception) -> None:
    one_tool(throws(error))
    run = execute(accept("actor"))
    step = fenced(run)
    assert step.outcome == StepOutcome.RAISED
    assert run.former_worker_may_act()


@pytest.mark.parametrize("declared", [ToolEffect.READ_ONLY, IDEMPOTENT, NON_IDEMPOTENT])
@pytest.mark.parametrize("which", sorted(set(STRANGE) - EXITS_WHEN_LOOKED_AT))
def test_a_strange_error_of_a_tool_settles_the_run(which: str, declared: ToolEffect) -> None:
    def act() -> Any:
        raise STRANGE[which]()

    _model, done = one_tool(act, declared)
    run = execute(accept("actor"))
    assert (run.status, done) == (RunStatus.FAILED, ["act"])
    if declared is NON_IDEMPOTENT:
        assert fenced(run).outcome == StepOutcome.RAISED
        assert run.former_worker_may_act()
    else:
        assert run.termination_reason == TerminationReason.NOT_RETRYABLE


def test_a_coroutine_that_raised_may_have_left_something_behind() -> None:
    agent = Agent(Scripted(calls(called("act", "call-0")), says("ok")).model, name="actor")

    @agent.tool_plain
    @effect(NON_IDEMPOTENT)
    async def act() -> Any:
        raise RuntimeError("broken")

    register_agent("actor", agent)
    run = execute(accept("actor"))
    step = fenced(run)
    assert step.outcome == StepOutcome.RAISED
    assert run.former_worker_may_act()


def execute_past_exits(run: AgentRun) -> AgentRun:
    try:
        return execute(run)
    except SystemExit:
        run.refresh_from_db()
        return run


def test_a_retry_that_is_declared_to_come_before_the_act_is_told_to_the_model() -> None:
    model, _done = one_tool(throws(ModelRetry("give a street")), retry_means_not_applied=True)
    run = execute(accept("actor"))
    assert run.status == RunStatus.COMPLETED
    assert step_named(run, "act").outcome == StepOutcome.EFFECT_NOT_APPLIED
    assert "give a street" in str(model.asked[-1])


def test_a_result_that_is_no_json_landed_and_fails_the_run_naming_the_tool() -> None:
    model, _done = one_tool(object)
    run = execute(accept("actor"))
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.pending_effect == ""
    assert step_named(run, "act").outcome == StepOutcome.LANDED_WITHOUT_RESULT
    assert "act" in run.error_message
    assert len(model.asked) == 1


def test_a_result_that_contains_itself_landed() -> None:
    circle: list[Any] = []
    circle.append(circle)
    one_tool(lambda: circle)
    run = execute(accept("actor"))
    assert step_named(run, "act").outcome == StepOutcome.LANDED_WITHOUT_RESULT


def test_effect_landed_is_recorded_and_fails_the_run() -> None:
    one_tool(throws(EffectLanded("the answer was cut")))
    run = execute(accept("actor"))
    assert run.status == RunStatus.FAILED
    assert run.pending_effect == ""
    assert "the answer was cut" in run.error_message


def test_a_retry_of_an_idempotent_write_goes_to_the_verdict_not_to_the_model() -> None:
    model, done = one_tool(throws(ModelRetry("lost")), IDEMPOTENT)
    run = execute(accept("actor"))
    assert run.status == RunStatus.QUEUED
    assert len(model.asked) == 1
    run = execute(run)
    assert done == ["act", "act"]
    assert len({step.idempotency_key for step in steps(run) if step.name == "act"}) == 1


class TestTransactional:
    def write(self) -> str:
        LedgerEntry.objects.create(
            run="00000000-0000-0000-0000-000000000001", idempotency_key="k", amount=1
        )
        return "written"

    def test_commits_with_its_step_and_needs_no_fence(self) -> None:
        _model, _done = one_tool(
            self.write, TRANSACTIONAL, failures={1: [ModelHTTPError(503, "m")]}
        )
        run = execute(accept("actor"))
        assert LedgerEntry.objects.count() == 1
        assert step_named(run, "act").state == StepState.RECORDED
        run = execute(run)
        assert run.status == RunStatus.COMPLETED
        assert output(run) == "ok"
        assert LedgerEntry.objects.count() == 1

    @pytest.mark.parametrize("error", [ModelRetry("again"), ToolFailed("no")], ids=str)
    def test_what_the_model_is_told_was_rolled_back(self, error: Exception) -> None:
        def body() -> None:
            self.write()
            raise error

        model, _done = one_tool(body, TRANSACTIONAL)
        run = execute(accept("actor"))
        assert run.status == RunStatus.COMPLETED, run.error_message
        assert LedgerEntry.objects.count() == 0
        assert step_named(run, "act").outcome == StepOutcome.EFFECT_NOT_APPLIED
        assert str(error) in str(model.asked[-1])

    def test_another_exception_rolls_back_and_fails_the_run_without_a_fence(self) -> None:
        def body() -> None:
            self.write()
            raise RuntimeError("broken")

        one_tool(body, TRANSACTIONAL)
        run = execute(accept("actor"))
        assert run.status == RunStatus.FAILED
        assert run.pending_effect == ""
        assert LedgerEntry.objects.count() == 0
