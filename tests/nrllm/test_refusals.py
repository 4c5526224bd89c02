"""Each way past the fence: refused when the agent is registered, or before anything is stamped."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, NativeOutput, TextOutput, ToolOutput
from pydantic_ai.capabilities import NativeTool, ProcessEventStream
from pydantic_ai.native_tools import MCPServerTool, WebSearchTool
from pydantic_ai.toolsets import AbstractToolset

from agentruns.enums import RunStatus, TerminationReason, ToolEffect
from nrllm import effect, register_agent
from nrllm.durability import RunDurability
from nrllm.exceptions import AgentRefused
from tests.nrllm.support import Scripted, accept, called, calls, execute, says, steps

pytestmark = pytest.mark.usefixtures("settings_for_runs")


class Answer(BaseModel):
    text: str


def acts(answer: str) -> str:
    return answer


@effect(ToolEffect.READ_ONLY)
def computes(answer: str) -> str:
    return answer.upper()


class OwnToolset(AbstractToolset[Any]):
    @property
    def id(self) -> str:
        return "own"

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        return {}

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        raise AssertionError


def test_a_toolset_of_its_own_kind_is_refused() -> None:
    agent = Agent("test", name="a", toolsets=[OwnToolset()])
    with pytest.raises(AgentRefused, match="FunctionToolset"):
        register_agent("a", agent)


@pytest.mark.parametrize(
    "output_type",
    [acts, [Answer, acts], ToolOutput(acts), TextOutput(acts), NativeOutput(acts)],
    ids=["function", "list", "ToolOutput", "TextOutput", "NativeOutput"],
)
def test_an_output_function_is_refused(output_type: Any) -> None:
    agent = Agent("test", name="a", output_type=output_type)
    with pytest.raises(AgentRefused, match="acts"):
        register_agent("a", agent)


def test_an_output_function_that_only_computes_is_allowed() -> None:
    agent = Agent("test", name="a", output_type=TextOutput(computes))
    register_agent("a", agent)


def test_an_output_function_declared_to_read_by_the_mapping_is_allowed() -> None:
    agent = Agent("test", name="a", output_type=TextOutput(acts))
    register_agent("a", agent, effects={"acts": ToolEffect.READ_ONLY})


def test_another_durable_engine_is_refused() -> None:
    class Other(RunDurability):
        def __init__(self) -> None:
            pass

        def for_agent(self, agent: Any) -> Any:
            return self

    agent = Agent("test", name="a", capabilities=[Other()])
    with pytest.raises(AgentRefused, match="durable engine"):
        register_agent("a", agent)


async def handler(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


def test_an_event_handler_of_the_agent_is_refused() -> None:
    agent = Agent("test", name="a", capabilities=[ProcessEventStream(handler)])
    with pytest.raises(AgentRefused, match="register_agent"):
        register_agent("a", agent)


def test_a_name_is_given_to_one_agent() -> None:
    register_agent("a", Agent("test", name="a"))
    with pytest.raises(ValueError, match="registered already"):
        register_agent("a", Agent("test", name="b"))


def test_an_effect_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="harmless"):
        register_agent("a", Agent("test", name="a"), effects={"t": "harmless"})  # type: ignore[dict-item]


@pytest.mark.parametrize("where", ["tool", "toolset"])
@pytest.mark.parametrize("declared", [None, ToolEffect.IDEMPOTENT_WRITE])
def test_a_timeout_on_a_write_is_refused_before_the_stamp(
    where: str, declared: ToolEffect | None
) -> None:
    acted: list[str] = []
    model = Scripted(calls(called("write", "a")), says("ok"))
    toolset = FunctionToolset[Any](id="desk", timeout=5 if where == "toolset" else None)

    @toolset.tool_plain(
        timeout=5 if where == "tool" else None,
        metadata=None if declared is None else {"effect": declared},
    )
    async def write() -> str:
        acted.append("write")
        return "done"

    register_agent("a", Agent(model.model, name="a", toolsets=[toolset]))
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.pending_effect == ""
    assert "timeout" in run.error_message
    assert acted == []
    assert [step.kind for step in steps(run)] == ["model"]


def test_the_agents_own_tool_timeout_is_refused_for_writes() -> None:
    model = Scripted(calls(called("write", "a")), says("ok"))
    agent = Agent(model.model, name="a", tool_timeout=5)

    @agent.tool_plain
    async def write() -> str:
        raise AssertionError

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.pending_effect == ""
    assert "timeout" in run.error_message


def test_a_timeout_on_a_read_is_allowed() -> None:
    model = Scripted(calls(called("read", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain(timeout=5, metadata={"effect": "read_only"})
    async def read() -> str:
        return "done"

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED


def test_a_native_tool_that_acts_is_refused() -> None:
    server = MCPServerTool(id="mail", url="https://mail.example/mcp")
    agent = Agent("test", name="a", capabilities=[NativeTool(server)])
    with pytest.raises(AgentRefused, match="MCPToolset"):
        register_agent("a", agent)


def test_a_native_tool_that_reads_is_allowed() -> None:
    register_agent("a", Agent("test", name="a", capabilities=[NativeTool(WebSearchTool())]))


def test_an_asynchronous_transactional_write_is_refused() -> None:
    model = Scripted(calls(called("write", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain(metadata={"effect": "transactional_write"})
    async def write() -> str:
        raise AssertionError

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert "plain `def`" in run.error_message


def test_a_hook_can_not_turn_a_refusal_into_a_result() -> None:
    from pydantic_ai.capabilities import Hooks

    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute_error
    async def swallow(ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Any) -> str:
        return "never mind"

    model = Scripted(calls(called("write", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain(timeout=5)
    async def write() -> str:
        raise AssertionError

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert len(model.asked) == 1


@pytest.mark.parametrize("request_", [None, 3, [], {}, {"prompt": 3}, {"message_history": "x"}])
def test_a_request_that_is_no_prompt_fails_the_run(request_: Any) -> None:
    model = Scripted(says("ok"))
    register_agent("a", Agent(model.model, name="a"))
    run = execute(accept("a", request_))
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.error_class == "RequestRefused"
    assert model.asked == []
