from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.toolsets import PrefixedToolset, RenamedToolset, SetMetadataToolset

from agentruns.enums import RunStatus, ToolEffect
from nrllm import effect, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, says, step_named

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def test_reads_of_one_response_overlap() -> None:
    together = asyncio.Event()
    waiting: list[int] = []
    model = Scripted(calls(*(called("read", f"c{n}", n=n) for n in range(3))), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def read(n: int) -> int:
        waiting.append(n)
        if len(waiting) == 3:
            together.set()
        await asyncio.wait_for(together.wait(), 60)
        return n

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED


def test_synchronous_reads_overlap() -> None:
    together = threading.Barrier(3, timeout=60)
    model = Scripted(calls(*(called("read", f"c{n}", n=n) for n in range(3))), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    def read(n: int) -> int:
        together.wait()
        return n

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED


def test_writes_of_one_response_run_one_at_a_time_in_the_order_of_the_calls() -> None:
    going_on: list[str] = []
    seen: list[tuple[str, list[str]]] = []
    model = Scripted(
        calls(
            called("write", "c1", n="1"),
            called("read", "c2", n="2"),
            called("write", "c3", n="3"),
        ),
        says("ok"),
    )
    agent = Agent(model.model, name="a")

    async def act(n: str) -> str:
        going_on.append(n)
        await asyncio.sleep(0.01)
        seen.append((n, list(going_on)))
        going_on.remove(n)
        return n

    agent.tool_plain(name="write")(act)
    agent.tool_plain(name="read", metadata={"effect": "read_only"})(act)
    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert seen == [("1", ["1"]), ("2", ["2"]), ("3", ["3"])]


def peek() -> int:
    return 1


def test_the_metadata_of_an_outer_capability_holds() -> None:
    model = Scripted(calls(called("peek", "a")), says("ok"))
    agent = Agent(
        model.model, name="a", capabilities=[SetToolMetadata(tools=["peek"], effect="read_only")]
    )
    agent.tool_plain(peek)
    register_agent("a", agent)
    run = execute(accept("a"))
    assert step_named(run, "peek").effect == ToolEffect.READ_ONLY


WRAPPERS = {
    "prefixed": (lambda inner: PrefixedToolset(inner, "desk"), "desk_peek"),
    "renamed": (lambda inner: RenamedToolset(inner, {"look": "peek"}), "look"),
    "annotated": (lambda inner: SetMetadataToolset(inner, {"effect": "read_only"}), "peek"),
}


@pytest.mark.parametrize(("wrap", "name"), WRAPPERS.values(), ids=WRAPPERS.keys())
def test_a_declaration_reaches_a_tool_through_wrappers(wrap: Any, name: str) -> None:
    model = Scripted(calls(called(name, "a")), says("ok"))
    inner: FunctionToolset[Any] = FunctionToolset([peek], id="inner")
    register_agent(
        "a",
        Agent(model.model, name="a", toolsets=[wrap(inner)]),
        effects={name: ToolEffect.READ_ONLY},
    )
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert step_named(run, name).effect == ToolEffect.READ_ONLY


def test_a_decorated_function_keeps_its_declaration_under_another_name() -> None:
    model = Scripted(calls(called("desk_read", "a")), says("ok"))

    @effect(ToolEffect.READ_ONLY)
    def read() -> int:
        return 1

    inner: FunctionToolset[Any] = FunctionToolset([read], id="inner")
    register_agent("a", Agent(model.model, name="a", toolsets=[PrefixedToolset(inner, "desk")]))
    run = execute(accept("a"))
    assert step_named(run, "desk_read").effect == ToolEffect.READ_ONLY
