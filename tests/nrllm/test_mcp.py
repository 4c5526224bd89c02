"""A real MCP server, over stdio and over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ToolCallPart

from agentruns.enums import RunStatus, StepState, ToolEffect
from nrllm import register_agent
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
from tests.servers.process import ROOT, ServerProcess

pytestmark = pytest.mark.usefixtures("settings_for_runs")

MODULE = "tests.nrllm.mcp_server"
Toolset = Callable[[], MCPToolset[Any]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "bodies"
    file.touch()
    return file


def stdio(log: Path) -> Toolset:
    def build() -> MCPToolset[Any]:
        transport = StdioTransport(
            sys.executable, ["-m", MODULE, str(log)], cwd=str(ROOT), keep_alive=False
        )
        return MCPToolset(transport, id="desk", init_timeout=60)

    return build


@pytest.fixture
def http(log: Path) -> Iterator[Toolset]:
    with ServerProcess(MODULE, str(log)) as process:
        yield lambda: MCPToolset(f"{process.url}/mcp", id="desk", init_timeout=60)


@pytest.fixture(params=["stdio", "http"])
def toolset(request: pytest.FixtureRequest, log: Path) -> Toolset:
    if request.param == "stdio":
        return stdio(log)
    made: Toolset = request.getfixturevalue("http")
    return made


def bodies(log: Path) -> list[str]:
    return log.read_text().split()


def register(toolset: Toolset, *parts: ToolCallPart, **options: Any) -> Scripted:
    failures = options.pop("failures", None)
    model = Scripted(calls(*parts), says("ok"), failures=failures)
    register_agent("a", lambda: Agent(model.model, name="a", toolsets=[toolset()]), **options)
    return model


def test_an_untrusted_servers_tools_are_non_idempotent_writes(toolset: Toolset, log: Path) -> None:
    register(toolset, called("read", "a", order=1), called("send", "b", to="x"))
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert bodies(log) == ["read", "send"]
    assert step_named(run, "read").effect == ToolEffect.NON_IDEMPOTENT_WRITE
    assert step_named(run, "send").effect == ToolEffect.NON_IDEMPOTENT_WRITE


def test_a_trusted_servers_hints_count(toolset: Toolset, log: Path) -> None:
    parts = [called("read", "a", order=1), called("put", "b", order=1), called("send", "c", to="x")]
    register(toolset, *parts, trusted_mcp_servers=["desk"])
    run = execute(accept("a"))
    effects = [step_named(run, name).effect for name in ("read", "put", "send")]
    assert effects == ["read_only", "idempotent_write", "non_idempotent_write"]


def test_a_server_that_lies_is_not_believed_unless_it_is_trusted(
    toolset: Toolset, log: Path
) -> None:
    register(toolset, called("lie", "a", to="x"))
    run = execute(accept("a"))
    assert step_named(run, "lie").effect == ToolEffect.NON_IDEMPOTENT_WRITE


def test_the_mapping_is_stricter_than_a_trusted_servers_lie(toolset: Toolset, log: Path) -> None:
    register(
        toolset,
        called("lie", "a", to="x"),
        trusted_mcp_servers=["desk"],
        effects={"lie": ToolEffect.NON_IDEMPOTENT_WRITE},
    )
    run = execute(accept("a"))
    assert step_named(run, "lie").effect == ToolEffect.NON_IDEMPOTENT_WRITE


def test_a_server_that_dies_in_a_write_leaves_the_fence_standing(
    toolset: Toolset, log: Path
) -> None:
    model = register(toolset, called("die", "a"))
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert fenced(run).name == "die"
    assert fenced(run).state == StepState.UNCERTAIN
    assert bodies(log) == ["die"]
    assert len(model.asked) == 1, "the model is not told to try again"


def test_a_declared_retry_means_nothing_for_a_server(toolset: Toolset, log: Path) -> None:
    """A `ModelRetry` also stands for a lost connection there."""
    from nrllm import Declaration

    said = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE, retry_means_not_applied=True)
    register(toolset, called("die", "a"), effects={"die": said})
    run = execute(accept("a"))
    assert fenced(run).name == "die"


def test_an_error_that_the_server_answers_is_uncertain(toolset: Toolset, log: Path) -> None:
    register(toolset, called("fail", "a"))
    run = execute(accept("a"))
    assert "Error executing tool fail" in run.error_message
    assert fenced(run).name == "fail"


def test_a_replay_asks_the_server_nothing(toolset: Toolset, log: Path) -> None:
    register(
        toolset,
        called("read", "a", order=1),
        called("send", "b", to="x"),
        failures={1: [ModelHTTPError(503, "m")]},
    )
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert bodies(log) == ["read", "send"]
    assert keys(run).count("tools:1:desk") == 1
