from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks

from agentruns.enums import RunStatus, ToolEffect
from nrllm import effect, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, keys, says

pytestmark = pytest.mark.usefixtures("settings_for_runs")

READ = ToolEffect.READ_ONLY
REPEATABLE = ToolEffect.IDEMPOTENT_WRITE
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
TRANSACTIONAL = ToolEffect.TRANSACTIONAL_WRITE


def helper(done: list[str], declared: ToolEffect | None) -> Agent[None, str]:
    """An agent that calls one tool, of this effect or undeclared."""
    model = Scripted(calls(called("act", "inner")), says("helped"))
    agent: Agent[None, str] = Agent(model.model, name="helper")

    async def act() -> str:
        done.append("act")
        return "done"

    agent.tool_plain(act if declared is None else effect(declared)(act))
    return agent


def ask_helper(outer: ToolEffect, inner: ToolEffect | None, **options: Any) -> list[str]:
    done: list[str] = []
    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")
    asked = helper(done, inner)

    @agent.tool_plain
    @effect(outer)
    async def ask() -> str:
        return (await asked.run("help")).output

    register_agent("a", agent, **options)
    return done


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(READ, READ), (REPEATABLE, READ), (REPEATABLE, REPEATABLE), (WRITE, WRITE), (WRITE, None)],
)
def test_an_agent_that_does_what_its_tool_declares_runs_inside_one_step(
    outer: ToolEffect, inner: ToolEffect | None
) -> None:
    done = ask_helper(outer, inner)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["act"]
    assert keys(run) == ["model:1", "tool:1:a", "model:2"]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(READ, WRITE), (READ, None), (READ, REPEATABLE), (READ, TRANSACTIONAL), (REPEATABLE, WRITE)],
)
def test_an_agent_that_does_more_than_its_tool_declares_is_refused(
    outer: ToolEffect, inner: ToolEffect | None
) -> None:
    done = ask_helper(outer, inner)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == []
    assert "'act'" in run.error_message


def test_the_mapping_declares_the_tools_of_agents_inside_tools() -> None:
    done = ask_helper(READ, None, effects={"act": READ})
    assert execute(accept("a")).status == RunStatus.COMPLETED
    assert done == ["act"]


def test_an_agent_run_synchronously_in_a_thread_is_held_to_its_tool() -> None:
    done: list[str] = []
    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")
    asked = helper(done, None)

    @agent.tool_plain
    @effect(READ)
    def ask() -> str:
        return asyncio.run(asked.run("help")).output

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == []


def test_an_agent_inside_a_transactional_write_is_refused() -> None:
    done: list[str] = []
    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")
    asked = helper(done, READ)

    @agent.tool_plain
    @effect(TRANSACTIONAL)
    def ask() -> str:
        return asyncio.run(asked.run("help")).output

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == []


def test_an_agent_that_a_hook_runs_may_not_write() -> None:
    done: list[str] = []
    hooks: Hooks[Any] = Hooks()
    asked = helper(done, None)

    @hooks.on.before_run
    async def ask(ctx: Any) -> None:
        await asked.run("help")

    model = Scripted(says("ok"))
    register_agent("a", Agent(model.model, name="a", capabilities=[hooks]))
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == []
    assert "outside every step" in run.error_message


def test_agents_outside_durable_runs_are_left_alone() -> None:
    done: list[str] = []
    assert asyncio.run(helper(done, None).run("help")).output == "helped"
    assert done == ["act"]
