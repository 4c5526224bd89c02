from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ModelHTTPError

from agentruns.enums import RunStatus, StepKind, StepState, TerminationReason, ToolEffect
from nrllm import effect, idempotency_key, register_agent
from tests.nrllm.support import (
    Scripted,
    accept,
    arguments,
    called,
    calls,
    execute,
    fenced,
    keys,
    output,
    reread,
    result,
    says,
    step_named,
    steps,
)

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def support_agent(model: Scripted, done: list[str]) -> Agent[None, str]:
    agent = Agent(model.model, name="support")

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def look_up(order: int) -> str:
        done.append(f"look_up {order}")
        return f"order {order} is late"

    @agent.tool_plain
    async def send_email(to: str) -> str:
        done.append(f"send_email {to}")
        return "sent"

    return agent


def test_an_agent_runs_as_a_durable_run() -> None:
    done: list[str] = []
    model = Scripted(
        calls(called("look_up", "a", order=1)), calls(called("send_email", "b", to="x")), says("ok")
    )
    register_agent("support", support_agent(model, done), version="1")

    run = execute(accept("support", "where is it?"))

    assert run.status == RunStatus.COMPLETED
    assert output(run) == "ok"
    assert done == ["look_up 1", "send_email x"]
    assert [(step.kind, step.name, step.effect) for step in steps(run)] == [
        (StepKind.MODEL, "scripted", ToolEffect.READ_ONLY),
        (StepKind.TOOL, "look_up", ToolEffect.READ_ONLY),
        (StepKind.MODEL, "scripted", ToolEffect.READ_ONLY),
        (StepKind.TOOL, "send_email", ToolEffect.NON_IDEMPOTENT_WRITE),
        (StepKind.MODEL, "scripted", ToolEffect.READ_ONLY),
    ]
    assert arguments(step_named(run, "send_email")) == {"to": "x"}
    assert run.usage is not None
    assert run.usage.value["requests"] == 3


def test_the_keys_of_steps_are_pinned() -> None:
    """A change of these strands every run in flight."""
    model = Scripted(
        calls(called("look_up", "a", order=1), called("look_up", "b", order=2)), says("ok")
    )
    register_agent("support", support_agent(model, []))
    run = execute(accept("support"))
    assert sorted(keys(run)) == ["model:1", "model:2", "tool:1:a", "tool:1:b"]


def test_what_is_recorded_is_not_repeated_after_a_failure() -> None:
    done: list[str] = []
    overloaded = ModelHTTPError(503, "scripted")
    model = Scripted(
        calls(called("look_up", "a", order=1)),
        calls(called("send_email", "b", to="x")),
        says("ok"),
        failures={2: [overloaded]},
    )
    register_agent("support", support_agent(model, done))

    run = execute(accept("support"))
    assert run.status == RunStatus.QUEUED
    run = execute(run)

    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["look_up 1", "send_email x"]
    assert [len(asked) for asked in model.asked] == [1, 3, 5, 5]


def test_a_changed_model_request_fails_the_replay_and_names_the_step() -> None:
    done: list[str] = []
    model = Scripted(
        calls(called("look_up", "a", order=1)),
        says("ok"),
        failures={1: [ModelHTTPError(503, "scripted")]},
    )
    agent = support_agent(model, done)
    said = ["Be kind."]
    agent.instructions(lambda: said[0])
    register_agent("support", agent)

    run = execute(accept("support"))
    said[0] = "Be rude."
    run = execute(run)

    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.error_class == "JournalMismatch"
    assert "'model:1'" in run.error_message
    assert len(model.asked) == 2


def test_the_history_is_never_stored_in_a_model_step() -> None:
    model = Scripted(calls(called("look_up", "a", order=1)), says("ok"))
    register_agent("support", support_agent(model, []))
    run = execute(accept("support", "a prompt to be stored once"))
    stored = str([(result(step), arguments(step)) for step in steps(run)])
    assert "a prompt to be stored once" not in stored
    assert all(step.digest for step in steps(run) if step.kind == StepKind.MODEL)


def test_an_undeclared_tool_that_raises_leaves_its_fence_standing() -> None:
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="support")

    @agent.tool_plain
    async def send() -> str:
        raise RuntimeError("connection lost after DATA")

    register_agent("support", agent)
    run = execute(accept("support"))

    assert run.status == RunStatus.FAILED
    assert fenced(run).name == "send"
    assert fenced(run).state == StepState.UNCERTAIN
    assert len(model.asked) == 1


def test_the_mapping_declares_tools_that_one_does_not_own() -> None:
    seen: list[str] = []
    model = Scripted(
        calls(called("charge", "a")), says("ok"), failures={1: [ModelHTTPError(503, "m")]}
    )
    agent = Agent(model.model, name="support")

    @agent.tool_plain
    async def charge() -> str:
        seen.append(idempotency_key())
        if len(seen) == 1:
            raise ConnectionError("lost")
        return "charged"

    register_agent("support", agent, effects={"charge": ToolEffect.IDEMPOTENT_WRITE})
    run = accept("support")
    run = execute(run)
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(execute(run))

    assert run.status == RunStatus.COMPLETED, run.error_message
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_the_decorator_declares_a_tool() -> None:
    model = Scripted(calls(called("peek", "a")), says("ok"))
    agent = Agent(model.model, name="support")

    @agent.tool
    @effect(ToolEffect.READ_ONLY)
    def peek(ctx: RunContext[Any]) -> int:
        return 3

    register_agent("support", agent)
    run = execute(accept("support"))
    assert step_named(run, "peek").effect == ToolEffect.READ_ONLY


def test_the_row_has_no_fence_after_a_recorded_write() -> None:
    model = Scripted(calls(called("send_email", "a", to="x")), says("ok"))
    during: list[str] = []
    agent = Agent(model.model, name="support")
    run_pk: list[Any] = []

    @agent.tool_plain
    def send_email(to: str) -> str:
        during.append(reread(run_pk[0]).pending_effect)
        return "sent"

    register_agent("support", agent)
    run = accept("support")
    run_pk.append(run)
    run = execute(run)
    assert during == ["non_idempotent_write"]
    assert run.pending_effect == ""
    assert run.status == RunStatus.COMPLETED
