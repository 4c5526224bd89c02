from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.toolsets import PrefixedToolset

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
    toolset: FunctionToolset[Any] = FunctionToolset([tool, read], id="t", timeout=3)
    register_agent(
        "a",
        Agent("test", name="a", toolsets=[toolset]),
        effects={"tool": ToolEffect.IDEMPOTENT_WRITE},
    )
    assert ids() == ["nrllm.E002"]


def listed(*arguments: str) -> str:
    out = StringIO()
    call_command("list_tool_effects", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_lists_effects_and_where_they_came_from() -> None:
    inner: FunctionToolset[Any] = FunctionToolset([tool], id="inner")
    agent = agent_with(read, toolsets=[PrefixedToolset(inner, "desk")])
    register_agent("a", agent, effects={"desk_tool": ToolEffect.IDEMPOTENT_WRITE})
    text = listed()
    assert "a  read  read_only  (decorator: read_only)" in text
    assert "a  desk_tool  idempotent_write  (mapping: idempotent_write)" in text


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


def test_the_command_names_what_needs_an_approval_and_what_is_verified() -> None:
    agent = agent_with(read)
    agent.tool_plain(requires_approval=True)(tool)
    declared = Declaration(ToolEffect.IDEMPOTENT_WRITE, verify=lambda doubt: Answer.unknown())
    register_agent("a", agent, effects={"tool": declared})
    assert "a  tool  idempotent_write, needs approval  (mapping: idempotent_write)" in listed()
    reading, writing = json.loads(listed("--json"))
    assert (reading["needs_approval"], reading["verified"]) == (False, False)
    assert (writing["needs_approval"], writing["verified"]) == (True, True)
