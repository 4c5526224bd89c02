"""A failure here means: a change would strand every run in flight. Change the code, not the pins."""

from __future__ import annotations

from datetime import UTC, datetime

from nrllm.keys import MAX_KEY_LENGTH, StepKeys, digest, jsonable


def test_keys_are_pinned() -> None:
    keys = StepKeys()
    assert keys.tool(3, "call_abc") == "tool:3:call_abc"
    assert keys.numbered("model", 1) == "model:1"
    assert keys.numbered("model", 1) == "model:1#2"
    assert keys.numbered("model", 2) == "model:2"
    assert keys.numbered("tools", 1, "github") == "tools:1:github"
    assert keys.validation(1, "c", "pay", approved=False) == "validate:1:c:pay"
    assert keys.validation(1, "c", "pay", approved=True) == "validate:1:c:pay:approved"
    assert keys.once("pay", {"to": "x"}, 1) == "once:pay:59672d2948aecafc11f8c37637082ee2"
    assert keys.once("pay", {"to": "x"}, 2) == "once:pay:59672d2948aecafc11f8c37637082ee2#2"


def test_a_tool_call_is_not_numbered() -> None:
    keys = StepKeys()
    assert keys.tool(1, "a") == keys.tool(1, "a")


def test_a_long_id_makes_a_key_that_fits_and_still_differs() -> None:
    keys = StepKeys()
    one, other = keys.tool(1, "x" * 400 + "1"), keys.tool(1, "x" * 400 + "2")
    assert len(one) <= MAX_KEY_LENGTH
    assert one != other


def test_digests_do_not_depend_on_order_or_addresses() -> None:
    assert digest({"a": 1, "b": object()}) == digest({"b": object(), "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_values_are_reduced_to_json() -> None:
    assert jsonable({"at": datetime(2024, 1, 1, tzinfo=UTC)}) == {"at": "2024-01-01T00:00:00Z"}
    assert jsonable(object()) == "<builtins.object>"
