from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset

from agentruns.enums import RunStatus, ToolEffect
from nrllm import register_agent
from nrllm.effects import Declaration, ToolFacts, effect, effect_of
from tests.nrllm.support import Scripted, accept, called, calls, execute, says, step_named

READ = ToolEffect.READ_ONLY
REPEATABLE = ToolEffect.IDEMPOTENT_WRITE
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
TRANSACTIONAL = ToolEffect.TRANSACTIONAL_WRITE


def marked(kind: ToolEffect, **more: Any) -> Any:
    @effect(kind, **more)
    def tool() -> None: ...

    return tool


def held(facts: ToolFacts, **mapping: Any) -> ToolEffect:
    return effect_of(facts, mapping).declaration.effect


def test_nothing_declared_is_a_non_idempotent_write() -> None:
    resolved = effect_of(ToolFacts("t"), {})
    assert resolved.declaration == Declaration(WRITE)
    assert not resolved.declared


@pytest.mark.parametrize("kind", ToolEffect)
def test_each_source_declares(kind: ToolEffect) -> None:
    assert held(ToolFacts("t", metadata={"effect": kind.value})) == kind
    assert held(ToolFacts("t", metadata={"effect": kind})) == kind
    assert held(ToolFacts("t", function=marked(kind))) == kind
    assert held(ToolFacts("t"), t=kind) == kind


def test_an_unknown_word_is_the_strictest() -> None:
    assert held(ToolFacts("t", metadata={"effect": "harmless"}), t=READ) == WRITE


@pytest.mark.parametrize(
    ("one", "other", "strictest"),
    [
        (READ, WRITE, WRITE),
        (READ, REPEATABLE, REPEATABLE),
        (READ, TRANSACTIONAL, TRANSACTIONAL),
        (TRANSACTIONAL, REPEATABLE, REPEATABLE),
        (REPEATABLE, WRITE, WRITE),
    ],
)
def test_the_strictest_of_contradicting_sources_holds(
    one: ToolEffect, other: ToolEffect, strictest: ToolEffect
) -> None:
    for first, second in ((one, other), (other, one)):
        facts = ToolFacts("t", metadata={"effect": first}, function=marked(second))
        resolved = effect_of(facts, {})
        assert resolved.declaration.effect == strictest
        assert resolved.contradicts


def test_annotations_count_only_from_a_trusted_server() -> None:
    metadata = {"annotations": {"readOnlyHint": True}}
    assert held(ToolFacts("t", metadata=metadata)) == WRITE
    assert held(ToolFacts("t", metadata=metadata, annotations_trusted=True)) == READ


@pytest.mark.parametrize(
    ("hints", "kind"),
    [
        ({"readOnlyHint": True}, READ),
        ({"readOnlyHint": False, "idempotentHint": True}, REPEATABLE),
        ({"destructiveHint": False}, WRITE),
        ({"readOnlyHint": "true"}, WRITE),
        ({}, WRITE),
        (None, WRITE),
    ],
)
def test_what_annotations_say(hints: Any, kind: ToolEffect) -> None:
    facts = ToolFacts("t", metadata={"annotations": hints}, annotations_trusted=True)
    assert held(facts) == kind


def test_a_declaration_carries_its_options() -> None:
    facts = ToolFacts("t", metadata={"effect": "non_idempotent_write", "once_per_run": True})
    assert effect_of(facts, {}).declaration.once_per_run
    facts = ToolFacts("t", function=marked(WRITE, retry_means_not_applied=True))
    assert effect_of(facts, {}).declaration.retry_means_not_applied


def test_a_word_that_is_no_effect_is_refused_in_the_decorator() -> None:
    with pytest.raises(ValueError, match="harmless"):
        effect("harmless")  # type: ignore[arg-type]


@pytest.mark.usefixtures("settings_for_runs")
@pytest.mark.parametrize("how", ["toolset", "twice", "capability", "prepared"])
def test_metadata_does_not_hide_stricter_metadata_of_the_same_tool(how: str) -> None:
    def act() -> str:
        return "done"

    leaf: FunctionToolset[Any] = FunctionToolset(id="desk")
    middle = {"effect": "idempotent_write"} if how == "twice" else {}
    leaf.add_function(act, metadata={"effect": "read_only" if how == "twice" else WRITE.value})
    held = REPEATABLE if how == "twice" else WRITE
    agent = Agent(
        Scripted(calls(called("desk_act", "a")), says("ok")).model,
        name="a",
        toolsets=[_read_only(leaf.with_metadata(**middle).prefixed("desk"), how)],
        capabilities=[SetToolMetadata(effect="read_only")] if how == "capability" else [],
    )
    register_agent("a", agent)
    assert step_named(execute(accept("a")), "desk_act").effect == held


def _read_only(toolset: AbstractToolset[Any], how: str) -> AbstractToolset[Any]:
    async def prepare(ctx: Any, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return [replace(tool, metadata={"effect": "read_only"}) for tool in tools]

    if how == "prepared":
        return toolset.prepared(prepare)
    return toolset if how == "capability" else toolset.with_metadata(effect="read_only")


@pytest.mark.usefixtures("settings_for_runs")
@pytest.mark.parametrize("wrapped", ["prefixed", "renamed"])
def test_an_effect_is_declared_for_the_name_that_the_model_sees_and_for_no_other(
    wrapped: str,
) -> None:
    inner: FunctionToolset[Any] = FunctionToolset(id="crm")

    @inner.tool_plain(name="refresh")
    def write() -> str:
        return "written"

    toolset = (
        inner.prefixed("crm")
        if wrapped == "prefixed"
        else inner.renamed({"crm_refresh": "refresh"})
    )
    model = Scripted(calls(called("crm_refresh", "a"), called("refresh", "b")), says("ok"))
    agent = Agent(model.model, name="a", toolsets=[toolset])

    @agent.tool_plain(name="refresh")
    def read() -> str:
        return "read"

    register_agent("a", agent, effects={"refresh": READ})
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert step_named(run, "crm_refresh").effect == WRITE
    assert step_named(run, "refresh").effect == READ
