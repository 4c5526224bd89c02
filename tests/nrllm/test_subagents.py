from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import update_wrapper
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext, TextOutput
from pydantic_ai.capabilities import Hooks

from agentruns.enums import RunStatus, ToolEffect
from nrllm import (
    Answer,
    EffectNotApplied,
    WriteInDoubt,
    effect,
    idempotency_key,
    register_agent,
)
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    keys,
    result,
    says,
    steps,
)

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


def test_the_mapping_declares_no_tool_of_an_agent_inside_a_tool() -> None:
    done = ask_helper(READ, None, effects={"act": READ})
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.FAILED, [])
    assert "'act' is non_idempotent_write" in run.error_message


def holding(outer: Any, inner: Agent[None, Any], *turns: Any) -> Scripted:
    """Register an agent 'a' whose tool `ask`, of this declaration, runs the inner agent."""
    model = Scripted(*(turns or (calls(called("ask", "a")), says("ok"))))
    agent: Agent[None, str] = Agent(model.model, name="a")

    async def ask() -> str:
        return str((await inner.run("help")).output)

    agent.tool_plain(outer(ask))
    register_agent("a", agent)
    return model


def sends(text: str) -> str:
    raise AssertionError


class Sender:
    """What some decorators make of a function."""

    def __init__(self) -> None:
        update_wrapper(self, sends)

    def __call__(self, text: str) -> str:
        raise AssertionError


@pytest.mark.parametrize("declared", [READ, WRITE])
@pytest.mark.parametrize("acts", [sends, TextOutput(sends), TextOutput(Sender())])
def test_an_output_function_of_an_agent_inside_a_tool_is_refused(
    declared: ToolEffect, acts: Any
) -> None:
    model = Scripted(calls(called("final_result", "o", text="x")))
    holding(effect(declared), Agent(model.model, name="helper", output_type=acts))
    run = execute(accept("a"))
    assert (run.status, model.asked) == (RunStatus.FAILED, [])
    assert "output function" in run.error_message


def answer_unknown(doubt: WriteInDoubt) -> Answer:
    return Answer.unknown()


@pytest.mark.parametrize(
    ("asked", "tool"),
    [
        ("needs an approval", {"declares": {"needs_approval": True}}),
        ("needs an approval", {"requires_approval": True}),
        ("is once_per_run", {"declares": {"once_per_run": True}}),
        ("declares `verify`", {"declares": {"verify": answer_unknown}}),
        ("has a timeout", {"timeout": 5}),
        ("has a timeout", {"of_toolset": 5}),
    ],
)
def test_what_only_a_step_can_keep_is_refused_inside_a_tool(asked: str, tool: Any) -> None:
    model = Scripted(calls(called("act", "i")), says("helped"))

    @effect(WRITE, **tool.pop("declares", {}))
    def act() -> str:
        raise AssertionError

    toolset: FunctionToolset[Any] = FunctionToolset(timeout=tool.pop("of_toolset", None))
    toolset.add_function(act, **tool)
    holding(effect(WRITE), Agent(model.model, name="helper", toolsets=[toolset]))
    run = execute(accept("a"))
    assert (run.status, model.asked) == (RunStatus.FAILED, [])
    assert asked in run.error_message
    assert "a run of its own" in run.error_message


def refusing(done: list[str], *, then: str) -> Agent[None, str]:
    """An agent that charges, then calls a tool that says that it did nothing."""
    turns = calls(called("charge", "i1")), calls(called("mail", "i2")), says(then)
    agent: Agent[None, str] = Agent(Scripted(*turns).model, name="helper")

    @agent.tool_plain
    @effect(WRITE)
    async def charge() -> str:
        done.append("charge")
        return "charged"

    @agent.tool_plain
    @effect(WRITE)
    async def mail() -> str:
        raise EffectNotApplied("no such address")

    return agent


def test_that_an_inner_call_did_nothing_is_told_to_the_inner_model_alone() -> None:
    done: list[str] = []
    again = calls(called("ask", "a")), says("ok")
    holding(effect(WRITE, once_per_run=True), refusing(done, then="charged, not mailed"), *again)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert (done, result(steps(run)[1])["result"]) == (["charge"], "charged, not mailed")


@pytest.mark.parametrize("raised", [EffectNotApplied("nothing"), ModelRetry("again")])
def test_that_nothing_happened_is_not_believed_once_an_agent_inside_has_written(
    raised: Exception,
) -> None:
    done: list[str] = []
    inner = refusing(done, then="charged")
    model = Scripted(calls(called("ask", "a")), calls(called("ask", "b")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(WRITE, retry_means_not_applied=True)
    async def ask() -> str:
        await inner.run("help")
        raise raised

    register_agent("a", agent)
    assert fenced(execute(accept("a"))).name == "ask"
    assert (done, len(model.asked)) == (["charge"], 1)


def test_each_inner_call_has_a_key_of_its_own_and_the_same_on_each_attempt() -> None:
    attempts: list[list[str]] = []
    turns = [
        called("put", "1", to="ann"),
        called("put", "2", to="bob"),
        called("put", "3", to="ann"),
    ]
    inner: Agent[None, str] = Agent(Scripted(calls(*turns), says("put")).model, name="helper")
    outer: set[str] = set()

    @inner.tool_plain(sequential=True)
    @effect(REPEATABLE)
    async def put(to: str) -> str:
        attempts[-1].append(idempotency_key())
        return "put"

    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(REPEATABLE)
    async def ask() -> str:
        outer.add(idempotency_key())
        attempts.append([])
        await inner.run("help")
        if len(attempts) == 1:
            raise ConnectionResetError
        return "asked"

    register_agent("a", agent)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    first, second = attempts
    assert first == second
    assert len({*first, *outer}) == 4


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


def in_a_pool(asked: Agent[None, str]) -> str:
    """Run an agent in a thread that gets no context: it does not know of which step it is a part."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(lambda: asyncio.run(asked.run("help")).output).result()


async def in_the_loops_executor(asked: Agent[None, str]) -> str:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: asyncio.run(asked.run("help")).output)


@pytest.mark.parametrize("run_inner", [in_a_pool, in_the_loops_executor])
def test_an_agent_in_a_thread_without_context_is_held_to_the_tool_that_is_running(
    run_inner: Any,
) -> None:
    done: list[str] = []
    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")
    asked = helper(done, None)

    @agent.tool_plain
    @effect(READ)
    async def ask() -> str:
        answer = run_inner(asked)
        return await answer if asyncio.iscoroutine(answer) else str(answer)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.FAILED, [])
    assert "the tool 'ask' is read_only" in run.error_message


def test_what_an_agent_in_a_thread_without_context_wrote_is_known_of_its_tool() -> None:
    done: list[str] = []
    inner = refusing(done, then="charged")
    model = Scripted(calls(called("ask", "a")), calls(called("ask", "b")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(WRITE)
    def ask() -> str:
        in_a_pool(inner)
        raise EffectNotApplied("nothing")

    register_agent("a", agent)
    assert fenced(execute(accept("a"))).name == "ask"
    assert (done, len(model.asked)) == (["charge"], 1)


def test_an_agent_in_a_task_of_the_deps_factory_may_not_write() -> None:
    done: list[str] = []
    asked = helper(done, None)
    model = Scripted(calls(called("ask", "a")), says("ok"))
    agent: Agent[Any, str] = Agent(model.model, name="a", deps_type=object)

    @agent.tool
    @effect(READ)
    async def ask(ctx: RunContext[Any]) -> str:
        answer = asyncio.get_running_loop().create_future()
        await ctx.deps.put(answer)
        return str(await answer)

    @asynccontextmanager
    async def deps(info: Any) -> AsyncIterator[Any]:
        questions: asyncio.Queue[Any] = asyncio.Queue()

        async def answer_them() -> None:
            while True:
                answer = await questions.get()
                try:
                    answer.set_result((await asked.run("help")).output)
                except Exception as error:
                    answer.set_exception(error)

        answering = asyncio.create_task(answer_them())
        yield questions
        answering.cancel()

    register_agent("a", agent, deps=deps)
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.FAILED, [])
    assert "outside every step" in run.error_message


def test_an_agent_in_a_thread_is_left_alone_when_no_durable_run_is_there() -> None:
    done: list[str] = []
    asked = helper(done, None)
    assert in_a_pool(asked) == "helped"
    assert done == ["act"]
