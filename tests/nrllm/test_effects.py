from __future__ import annotations

from typing import Any

import pytest

from agentruns.enums import ToolEffect
from nrllm.effects import Declaration, ToolFacts, effect, effect_of

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
