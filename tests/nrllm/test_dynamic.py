from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, RunContext
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry
from pydantic_ai.toolsets import AbstractToolset

from agentruns import registry
from agentruns.enums import RunStatus, ToolEffect
from nrllm import Answer, Declaration, WriteInDoubt, effect, register_agent
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    keys,
    says,
    step_named,
)

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def register(
    model: Scripted,
    done: list[str],
    *,
    metadata: Any = None,
    timeout: float | None = None,
    **options: Any,
) -> None:
    agent = Agent(model.model, name="a")

    def send(to: int) -> str:
        done.append(f"send {to}")
        if to == 13:
            raise ModelRetry("unlucky")
        return "sent"

    @agent.toolset(id="desk")
    def desk(ctx: RunContext[Any]) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset(id="inner", timeout=timeout)
        toolset.tool_plain(metadata=metadata)(send)
        return toolset

    register_agent("a", agent, **options)


def test_a_dynamic_toolsets_tool_is_a_step() -> None:
    done: list[str] = []
    model = Scripted(
        calls(called("send", "a", to=1)), says("ok"), failures={1: [ModelHTTPError(503, "m")]}
    )
    register(model, done)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send 1"]
    assert step_named(run, "send").effect == ToolEffect.NON_IDEMPOTENT_WRITE
    assert "tools:1:desk" in keys(run)


def test_bad_arguments_are_refused_before_the_stamp() -> None:
    done: list[str] = []
    model = Scripted(
        calls(called("send", "a", to="nobody")),
        calls(called("send", "b", to=2)),
        says("ok"),
        failures={2: [ModelHTTPError(503, "m")]},
    )
    register(model, done)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send 2"]
    assert "tool:1:a" not in keys(run), "the write was never stamped"
    assert "valid integer" in str(model.asked[1])


def test_the_metadata_of_its_tools_counts() -> None:
    model = Scripted(calls(called("send", "a", to=1)), says("ok"))
    register(model, [], metadata={"effect": "read_only"})
    run = execute(accept("a"))
    assert step_named(run, "send").effect == ToolEffect.READ_ONLY


def unknown(doubt: WriteInDoubt) -> Answer:
    return Answer.unknown()


def test_a_verification_is_declared_by_the_mapping_alone() -> None:
    verified = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE, verify=unknown)
    done: list[str] = []
    register(Scripted(says("no")), done, metadata={"effect": verified})
    refused = execute(accept("a"))
    assert (refused.status, done) == (RunStatus.FAILED, [])
    assert "effects=" in refused.error_message, refused.error_message


def test_a_verification_in_the_mapping_is_known_before_any_run() -> None:
    verified = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE, verify=unknown)
    model = Scripted(calls(called("send", "a", to=13)), says("ok"))
    register(model, [], effects={"send": verified})
    assert registry.verifier("a", "send") is not None
    assert fenced(execute(accept("a"))).name == "send"


@pytest.mark.parametrize(
    "asked",
    [{"needs_approval": True}, {"once_per_run": True}, {"verify": unknown}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_a_decorator_inside_asks_for_is_refused_and_not_ignored(asked: Any) -> None:
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, **asked)
    def send() -> str:
        raise AssertionError

    @agent.toolset(id="desk")
    def desk(ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return FunctionToolset([send], id="inner")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused"), run.error_message
    assert run.pending_effect == ""
    assert next(iter(asked)) in run.error_message


@pytest.mark.parametrize("declared", [False, True])
def test_a_retry_is_uncertain_also_where_it_is_declared_to_come_before_the_act(
    declared: bool,
) -> None:
    """Its toolset's timeout would look the same, and it can't be seen from outside."""
    model = Scripted(calls(called("send", "a", to=13)), says("ok"))
    said = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE, retry_means_not_applied=declared)
    register(model, [], timeout=5, effects={"send": said})
    run = execute(accept("a"))
    assert fenced(run).name == "send"


def test_a_decorator_inside_is_not_seen() -> None:
    """The definition crosses the journal, the function does not: use metadata or the mapping."""
    model = Scripted(calls(called("look", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @effect(ToolEffect.READ_ONLY)
    def look() -> str:
        return "found"

    @agent.toolset(id="desk")
    def desk(ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return FunctionToolset([look], id="inner")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert step_named(run, "look").effect == ToolEffect.NON_IDEMPOTENT_WRITE


@pytest.mark.parametrize("said_by", ["metadata", "mapping"])
def test_a_decorator_that_is_stricter_than_what_is_seen_is_refused_before_the_body(
    said_by: str,
) -> None:
    done: list[str] = []
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a")
    metadata = {"effect": "read_only"} if said_by == "metadata" else None

    @agent.toolset(id="desk")
    def desk(ctx: RunContext[Any]) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset(id="inner", metadata=metadata)

        @toolset.tool_plain
        @effect(ToolEffect.NON_IDEMPOTENT_WRITE)
        def send() -> str:
            done.append("send")
            return "sent"

        return toolset

    effects = {"send": ToolEffect.READ_ONLY} if said_by == "mapping" else {}
    register_agent("a", agent, effects=effects)
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.FAILED, [])
    assert "declares non_idempotent_write by its decorator" in run.error_message
