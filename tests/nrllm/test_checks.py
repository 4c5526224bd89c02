from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.toolsets import CombinedToolset, PrefixedToolset, WrapperToolset

from agentruns import registry
from agentruns.enums import ToolEffect
from nrllm import Answer, Declaration, effect, register_agent
from nrllm.checks import check_tools


def tool() -> None: ...


@effect(ToolEffect.READ_ONLY)
def read() -> None: ...


def ids() -> list[str | None]:
    return [message.id for message in check_tools()]


def agent_with(*functions: Any, **options: Any) -> Agent[None, str]:
    return Agent("test", name="a", tools=functions, **options)


def test_W001_names_a_tool_without_an_effect() -> None:
    register_agent("a", agent_with(tool, read))
    (message,) = check_tools()
    assert message.id == "nrllm.W001"
    assert message.hint is not None
    assert message.hint.index("NON_IDEMPOTENT_WRITE") < message.hint.index("READ_ONLY")
    assert "'tool'" in message.msg
    assert message.hint


def test_W001_is_silent_for_declared_tools() -> None:
    register_agent("a", agent_with(tool, read), effects={"tool": ToolEffect.READ_ONLY})
    register_agent("b", agent_with(tool, capabilities=[SetToolMetadata(effect="read_only")]))
    assert ids() == []


def test_W002_names_sources_that_contradict_each_other() -> None:
    register_agent("a", agent_with(read), effects={"read": ToolEffect.IDEMPOTENT_WRITE})
    (message,) = check_tools()
    assert message.id == "nrllm.W002"
    assert "idempotent_write" in message.msg


def overwritten(how: str) -> Agent[None, str]:
    inner: FunctionToolset[Any] = FunctionToolset(id="inner")
    inner.add_function(tool, metadata={"effect": "non_idempotent_write"})
    read_only: dict[str, Any] = {"effect": "read_only"}
    if how == "capability":
        setter: SetToolMetadata[Any] = SetToolMetadata(**read_only)
        return Agent("test", name="a", toolsets=[inner], capabilities=[setter])
    return Agent("test", name="a", toolsets=[inner.prefixed("x").with_metadata(**read_only)])


@pytest.mark.parametrize("how", ["toolset", "capability"])
def test_W002_names_metadata_that_other_metadata_wrote_over(how: str) -> None:
    register_agent("a", overwritten(how))
    (message,) = check_tools()
    assert message.id == "nrllm.W002"
    assert "read_only, metadata: non_idempotent_write" in message.msg


def test_W003_names_a_declaration_without_a_tool() -> None:
    register_agent("a", agent_with(read), effects={"raed": ToolEffect.READ_ONLY})
    (message,) = check_tools()
    assert message.id == "nrllm.W003"
    assert "'raed'" in message.msg


def test_E001_names_an_effect_that_is_none() -> None:
    toolset: FunctionToolset[Any] = FunctionToolset([tool], id="t", metadata={"effect": "safe"})
    register_agent("a", Agent("test", name="a", toolsets=[toolset]))
    assert ids() == ["nrllm.E001"]


def test_E002_names_a_timeout_on_a_write() -> None:
    toolset: FunctionToolset[Any] = FunctionToolset([read], id="t", timeout=3)
    agent = Agent("test", name="a", toolsets=[toolset])
    register_agent("a", agent, effects={"tool": ToolEffect.IDEMPOTENT_WRITE})
    assert ids() == ["nrllm.W003"]
    toolset.add_function(tool)  # a registration would have refused it
    assert ids() == ["nrllm.E002"]


def validated(marked: bool) -> Agent[None, str]:
    agent = agent_with(read)

    def shorten(output: str) -> str:
        return output[:10]

    agent.output_validator(effect(ToolEffect.READ_ONLY)(shorten) if marked else shorten)
    return agent


def test_W004_names_output_validators_that_are_not_marked() -> None:
    register_agent("a", validated(marked=True))
    assert ids() == []
    register_agent("b", validated(marked=False))
    (message,) = check_tools()
    assert message.id == "nrllm.W004"
    assert "shorten" in message.msg


class Auditing(WrapperToolset[Any]):
    async def call_tool(self, *args: Any) -> Any:
        return await super().call_tool(*args)


class Measuring(WrapperToolset[Any]):
    @effect(ToolEffect.READ_ONLY)
    async def call_tool(self, *args: Any) -> Any:
        return await super().call_tool(*args)


class Renaming(WrapperToolset[Any]):
    pass


def test_W005_names_wrappers_with_code_of_their_own_around_each_call() -> None:
    inner: FunctionToolset[Any] = FunctionToolset([read], id="inner")
    harmless = Renaming(Measuring(inner)).prefixed("x")
    register_agent("a", Agent("test", name="a", toolsets=[harmless]))
    assert ids() == []
    register_agent("b", Agent("test", name="b", toolsets=[Auditing(harmless).prefixed("y")]))
    (message,) = check_tools()
    assert message.id == "nrllm.W005"
    assert "Auditing.call_tool" in message.msg


class Choosing(CombinedToolset[Any]):
    async def call_tool(self, *args: Any) -> Any:
        return await super().call_tool(*args)


def test_W005_names_combinations_with_code_of_their_own_around_each_call() -> None:
    inner: FunctionToolset[Any] = FunctionToolset([read], id="inner")
    register_agent("a", Agent("test", name="a", toolsets=[Choosing([inner])]))
    (message,) = check_tools()
    assert message.id == "nrllm.W005"
    assert "Choosing.call_tool" in message.msg


def listed(*arguments: str) -> str:
    out = StringIO()
    call_command("list_tool_effects", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_lists_effects_and_where_they_came_from() -> None:
    inner: FunctionToolset[Any] = FunctionToolset([tool], id="inner")
    agent = agent_with(read, toolsets=[PrefixedToolset(inner, "desk")])
    register_agent("a", agent, effects={"desk_tool": ToolEffect.IDEMPOTENT_WRITE})
    read_line, desk_line, *_plain = listed().splitlines()
    assert read_line.split(maxsplit=3) == ["a", "read", "read_only", "(decorator: read_only)"]
    assert desk_line.split(maxsplit=3)[1:3] == ["desk_tool", "idempotent_write"]
    assert desk_line.endswith("(mapping: idempotent_write)")
    assert desk_line.index("(") == read_line.index("(")


def test_the_command_says_what_is_verified_and_what_is_done_once() -> None:
    asks = Declaration(
        ToolEffect.NON_IDEMPOTENT_WRITE, once_per_run=True, verify=lambda doubt: Answer.unknown()
    )
    register_agent("a", agent_with(tool), effects={"tool": asks})
    assert "  once per run, verify  " in listed()
    register_agent("b", agent_with(tool), effects={"tool": replace(asks, verify_is_final=True)})
    assert "  once per run, final verify  " in listed("b")


def test_the_command_prints_json() -> None:
    register_agent("a", agent_with(tool))
    register_agent("b", agent_with(read))
    (entry,) = json.loads(listed("a", "--json"))
    assert entry["agent"] == "a"
    assert entry["effect"] == "non_idempotent_write"
    assert entry["declared"] is False


def test_the_command_refuses_an_agent_that_is_not_registered() -> None:
    with pytest.raises(CommandError, match="nobody"):
        listed("nobody")


def test_the_command_says_that_there_is_nothing_to_list() -> None:
    assert "No Pydantic AI agent is registered" in listed()
    assert json.loads(listed("--json")) == []
    register_agent("a", agent_with())
    assert listed("a") == "Without tools: a.\n"
    assert "Without tools: a." in listed()


def test_the_command_says_what_a_plain_function_is() -> None:
    registry.add(registry.RegisteredAgent("refund", lambda segment: None))
    assert "Plain functions name the effect of each step" in listed()
    with pytest.raises(CommandError, match=r"plain functions name the effect.*: refund"):
        listed("refund")
    with pytest.raises(CommandError, match="no agent is registered as: nobody"):
        listed("refund", "nobody")


def test_the_command_knows_the_setting_that_every_write_needs_an_approval(settings: Any) -> None:
    register_agent("a", agent_with(tool, read))
    assert "needs approval" not in listed()
    settings.AGENTRUNS = {**settings.AGENTRUNS, "WRITES_NEED_APPROVAL": True}
    assert listed().count("needs approval") == 1


def test_the_command_names_what_needs_an_approval_and_what_is_verified() -> None:
    agent = agent_with(read)
    agent.tool_plain(requires_approval=True)(tool)
    declared = Declaration(ToolEffect.IDEMPOTENT_WRITE, verify=lambda doubt: Answer.unknown())
    register_agent("a", agent, effects={"tool": declared})
    assert "a  tool  idempotent_write  needs approval, verify  (mapping: idem" in listed()
    reading, writing = json.loads(listed("--json"))
    assert (reading["needs_approval"], reading["verified"]) == (False, False)
    assert (writing["needs_approval"], writing["verified"]) == (True, True)
