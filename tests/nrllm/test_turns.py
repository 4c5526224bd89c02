"""Runs of one process that share a toolset with a connection."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agentruns.api import Completed, Waiting, run
from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun
from nrllm import effect, register_agent
from nrllm.turns import _taken, turn_of
from tests.nrllm.support import called, calls, says
from tests.servers.process import ROOT
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def server(log: Path) -> MCPToolset[Any]:
    command = ["-m", "tests.nrllm.mcp_server", str(log)]
    transport = StdioTransport(sys.executable, command, cwd=str(ROOT), keep_alive=False)
    return MCPToolset(transport, id="desk", init_timeout=60)


def answer_of(ended: Completed | Waiting) -> Any:
    assert isinstance(ended, Completed)
    return ended.output


def both_are_running() -> bool:
    try:
        return len(AgentRun.objects.filter(status=RunStatus.RUNNING)) == 2
    finally:
        connections.close_all()


def test_two_threads_may_run_one_agent_with_a_server(tmp_path: Path) -> None:
    first = threading.Event()
    ended: list[Any] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not first.is_set():
            first.set()
            await asyncio.to_thread(wait_until, both_are_running, 60, "the other run")
        told = sum(isinstance(message, ModelResponse) for message in messages)
        return says("ok") if told else calls(called("send", "a", to="x"))

    agent = Agent(FunctionModel(answer), name="a", toolsets=[server(tmp_path / "bodies")])
    register_agent("a", agent)

    def go() -> None:
        try:
            ended.append(answer_of(run("a", "go")))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=go, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ended == ["ok", "ok"]
    assert (tmp_path / "bodies").read_text().split() == ["send", "send"]
    assert _taken == set()


def test_a_tool_that_runs_the_agent_around_it_is_refused(tmp_path: Path) -> None:
    said: list[str] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told = sum(isinstance(message, ModelResponse) for message in messages)
        return says("ok") if told else calls(called("again", "a"))

    agent = Agent(FunctionModel(answer), name="a", toolsets=[server(tmp_path / "bodies")])

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE)
    def again() -> str:
        try:
            run("a", "again")
        except Exception as error:
            said.append(str(error))
        return "tried"

    register_agent("a", agent)
    assert answer_of(run("a", "go")) == "ok"
    assert "would wait for itself" in said[0]


def test_a_turn_that_does_not_come_is_an_error_that_may_pass(settings: Any, tmp_path: Path) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_STEP_SECONDS": 0}
    agent = Agent("test", toolsets=[server(tmp_path / "bodies")])

    async def other() -> None:
        async with turn_of(agent):
            raise AssertionError("two at once")

    async def one() -> None:
        async with turn_of(agent):
            with pytest.raises(TimeoutError):
                await asyncio.create_task(other(), context=Context())

    asyncio.run(one())
    assert _taken == set()
