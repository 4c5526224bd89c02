from __future__ import annotations

import asyncio
import os
import sys

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.test import TestModel

from agentruns.testing.client import RecorderClient
from tests.servers.process import ROOT, ServerProcess

# A busy machine takes long to start a process, and to answer.
PATIENT = 60
TOOLS = ["look_up_ticket", "close_ticket", "answer_ticket", "archive_ticket", "escalate_ticket"]


def call_every_tool(toolset: MCPToolset[None]) -> None:
    async def call() -> None:
        agent = Agent(TestModel(), toolsets=[toolset])
        async with agent:
            await agent.run("call every tool")

    asyncio.run(call())


def test_serves_its_tools_over_http(recorder: RecorderClient, recorder_url: str) -> None:
    with ServerProcess("mcp_tools", "--http", "--recorder", recorder_url) as server:
        call_every_tool(MCPToolset(f"{server.url}/mcp", init_timeout=PATIENT))
    assert sorted(body["name"] for body in recorder.bodies()) == sorted(TOOLS)


def test_serves_its_tools_over_stdio(recorder: RecorderClient, recorder_url: str) -> None:
    call_every_tool(
        MCPToolset(
            StdioTransport(
                sys.executable,
                ["-m", "tests.servers.mcp_tools"],
                env={**os.environ, "RECORDER_URL": recorder_url},
                cwd=str(ROOT),
            ),
            init_timeout=PATIENT,
        )
    )
    assert sorted(body["name"] for body in recorder.bodies()) == sorted(TOOLS)


def test_dies_in_the_middle_of_a_tool(recorder: RecorderClient, recorder_url: str) -> None:
    recorder.arm("in_mcp:answer_ticket", block=False, answer="die")
    with (
        ServerProcess("mcp_tools", "--http", "--recorder", recorder_url) as server,
        pytest.raises(Exception),  # noqa: B017 - how a client sees it is the client's business
    ):
        call_every_tool(MCPToolset(f"{server.url}/mcp", init_timeout=PATIENT))
    assert recorder.count("answer_ticket") == 1


def test_tells_its_client_that_a_tool_failed(recorder: RecorderClient, recorder_url: str) -> None:
    recorder.arm("in_mcp:answer_ticket", block=False, answer="fail")
    with ServerProcess("mcp_tools", "--http", "--recorder", recorder_url) as server:
        call_every_tool(MCPToolset(f"{server.url}/mcp", init_timeout=PATIENT))
    assert recorder.count("answer_ticket") == 2
