"""What the agent's own hooks and fallbacks may do to a durable run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import Hooks, ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.toolsets import WrapperToolset

from agentruns.enums import RunStatus
from nrllm import PolicyDenied, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, keys, output, says

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def overloaded() -> Exception:
    return ModelHTTPError(503, "m")


def test_a_hook_that_calls_a_write_twice_gets_the_first_answer_again() -> None:
    hooks: Hooks[Any] = Hooks()
    answers: list[Any] = []

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        answers.append(await handler(args))
        answers.append(await handler(args))
        return answers[-1]

    done: list[str] = []
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> int:
        done.append("send")
        return len(done)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send"]
    assert answers == [1, 1]


@pytest.mark.parametrize("metadata", [None, {"effect": "read_only"}], ids=["write", "read"])
def test_a_hook_that_calls_a_tool_twice_at_a_time_gets_one_answer(metadata: Any) -> None:
    hooks: Hooks[Any] = Hooks()
    answers: list[Any] = []

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        answers.extend(await asyncio.gather(handler(args), handler(args)))
        return answers[-1]

    done: list[str] = []
    model = Scripted(calls(called("act", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain(metadata=metadata)
    async def act() -> int:
        done.append("act")
        return len(done)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["act"]
    assert answers == [1, 1]


def test_a_call_that_code_makes_under_a_new_id_each_time_is_replayed() -> None:
    @dataclass
    class Dispatching(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            fresh = replace(ctx, tool_call_id=str(uuid4()))
            return await super().call_tool(name, tool_args, fresh, tool)

    done: list[str] = []

    def send() -> str:
        done.append("send")
        return "sent"

    model = Scripted(calls(called("send", "a")), says("ok"), failures={1: [overloaded()]})
    inner: FunctionToolset[Any] = FunctionToolset([send], id="inner")
    register_agent("a", Agent(model.model, name="a", toolsets=[Dispatching(inner)]))
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send"]
    assert "call:1:send" in keys(run)


def test_a_hook_that_calls_a_write_again_with_other_arguments_is_refused() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        await handler(args)
        return await handler({"to": "somebody else"})

    done: list[str] = []
    model = Scripted(calls(called("send", "a", to="x")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send(to: str) -> None:
        done.append(to)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == ["x"]
    assert "tool:1:a" in run.error_message


def test_a_hook_may_ask_again_for_a_read_that_failed() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def again(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        try:
            return await handler(args)
        except ConnectionError:
            return await handler(args)

    done: list[str] = []
    model = Scripted(calls(called("read", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def read() -> str:
        done.append("read")
        if len(done) == 1:
            raise ConnectionError
        return "found"

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED
    assert done == ["read", "read"]


def test_a_hook_that_turns_an_error_into_a_result_can_not_hide_an_uncertain_write() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute_error
    async def swallow(ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Any) -> str:
        return "never mind"

    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> None:
        raise RuntimeError("broken")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.pending_effect == "non_idempotent_write"
    assert len(model.asked) == 1


@pytest.mark.parametrize("where", ["before_model_request", "after_model_request"])
def test_a_guardrail_ends_the_run_as_denied_by_policy(where: str) -> None:
    hooks: Hooks[Any] = Hooks()

    async def judge(ctx: Any, *request: Any, **more: Any) -> Any:
        raise PolicyDenied("not about that")

    getattr(hooks.on, where)(judge)
    done: list[str] = []
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> None:
        done.append("send")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.termination_reason) == (RunStatus.FAILED, "policy_denied")
    assert "not about that" in run.error_message
    assert done == []


def fallback_agent(first: Scripted, second: Scripted, done: list[str]) -> Agent[None, str]:
    agent = Agent(first.model, name="a", capabilities=[ModelFallback(second.model)])

    @agent.tool_plain
    async def send() -> str:
        done.append("send")
        return "sent"

    return agent


def test_a_replay_takes_the_fallback_that_was_taken() -> None:
    done: list[str] = []
    first = Scripted(
        calls(called("send", "other")), says("no"), says("no"), failures={0: [overloaded()]}
    )
    second = Scripted(calls(called("send", "a")), says("ok"))
    first.failures[1] = [overloaded(), overloaded()]
    second.failures[1] = [ModelHTTPError(500, "m")]
    agent = fallback_agent(first, second, done)
    register_agent("a", agent, models={"second": second.model})

    run = execute(accept("a"))
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "ok"
    assert done == ["send"]
    assert len(first.asked) == 2, "a failure that was survived is replayed, not asked for again"
    assert {"model:1", "model:1#2"} <= set(keys(run))


def test_a_fallback_model_is_one_step() -> None:
    first = Scripted(says("no"), failures={0: [overloaded()]})
    second = Scripted(says("ok"))
    agent = Agent(FallbackModel(first.model, second.model), name="a")
    register_agent("a", agent)
    run = execute(accept("a"))
    assert output(run) == "ok"
    assert keys(run) == ["model:1"]
