"""What goes on beside a write can't make it start twice, or make its end be forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks

from agentruns.enums import RunStatus, StepState, ToolEffect
from agentruns.models import AgentRun
from nrllm import effect, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, fenced, says, step_named

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def clerk(*names: str, hooks: Any = None, hanging: asyncio.Event | None = None) -> list[str]:
    """Register an agent whose model makes these calls at once; return what it did, as it does it."""
    done: list[str] = []
    never = asyncio.Event()
    model = Scripted(calls(*(called(name, f"{name}-1") for name in names)), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a", capabilities=[hooks] if hooks else [])

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def fail() -> str:
        done.append("fail")
        raise RuntimeError("broken")

    @agent.tool_plain
    async def send() -> str:
        done.append("send")
        return "sent"

    @agent.tool_plain
    async def hang() -> str:
        done.append("hang")
        if hanging is not None:
            hanging.set()
        await never.wait()
        return "sent"

    register_agent("a", agent)
    return done


def test_a_read_that_fails_after_a_write_leaves_the_write_recorded() -> None:
    done = clerk("send", "fail")
    run = execute(accept("a"))
    assert (run.status, run.pending_effect) == (RunStatus.FAILED, "")
    assert done == ["send", "fail"]
    assert step_named(run, "send").state == StepState.RECORDED


def test_a_write_behind_a_read_that_fails_never_starts() -> None:
    done = clerk("fail", "send")
    run = execute(accept("a"))
    assert (run.status, run.pending_effect) == (RunStatus.FAILED, "")
    assert done == ["fail"]
    assert not run.journal().filter(name="send").exists()


def impatient(hanging: asyncio.Event, swallow: bool) -> Hooks[Any]:
    """Give the call that hangs up as soon as it does."""
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def give_up(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        if call.tool_name != "hang":
            return await handler(args)
        handling = asyncio.ensure_future(handler(args))
        await hanging.wait()
        try:
            return await asyncio.wait_for(handling, 0)
        except TimeoutError:
            if swallow:
                return "never mind"
            raise

    return hooks


@pytest.mark.parametrize("swallow", [False, True])
def test_a_write_that_is_cancelled_from_outside_leaves_its_fence_standing(swallow: bool) -> None:
    hanging = asyncio.Event()
    done = clerk("hang", "send", hooks=impatient(hanging, swallow), hanging=hanging)
    run: AgentRun = execute(accept("a"))
    assert done == ["hang"], "nothing goes on beside a fence"
    assert fenced(run).name == "hang"
    assert run.status == RunStatus.FAILED
