from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from agentruns.exceptions import PayloadError, PayloadUnreadable
from agentruns.fields import MAX_DEPTH, Payload, label, storable, typed_json
from agentruns.models import AgentRun
from tests.factories import queued
from tests.strange import EmptyAtFirst, KeylessAtFirst, Name

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)

AWKWARD: list[Any] = [
    None,
    "",
    "\x00",
    "NUL in the middle \x00 of a text",
    "\ud800 and \udfff alone",
    {"\x00key": {"\ud83d": "\U0001f600"}},
    [1, 2.5, True, None, "ü"],
    10**300,
    {"deep": [[[[[[{}]]]]]]},
    float("inf"),
    -float("inf"),
    "x" * 1_000_000,
    "\\u0000 is text, not a NUL",
]


@given(JSON)
def test_gives_back_what_was_put_in(value: Any) -> None:
    assert Payload.of(value).value == value


@given(JSON)
def test_is_ascii_without_a_nul(value: Any) -> None:
    text = Payload.of(value).text
    assert text.isascii()
    assert "\x00" not in text


@pytest.mark.django_db
@pytest.mark.parametrize("value", AWKWARD, ids=range(len(AWKWARD)))
def test_survives_the_database(value: Any) -> None:
    run = queued(request={"value": value})
    stored = AgentRun.objects.get(pk=run.pk).request
    assert stored is not None
    assert stored.value == {"value": value}


@pytest.mark.django_db
def test_nan_survives_the_database() -> None:
    stored = AgentRun.objects.get(pk=queued(request=[math.nan]).pk).request
    assert stored is not None
    assert math.isnan(stored.value[0])


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _level in range(levels):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Hostile(dict[str, Any]):
    """A mapping that can't be read."""

    def items(self) -> Any:
        raise RuntimeError("not today")


class Unspeakable(dict[str, Any]):
    """A mapping whose error can't even be printed."""

    def items(self) -> Any:
        raise UnprintableError


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize(
    "value",
    [
        {1: "a key that json would turn into a string"},
        {"outer": [{None: 1}]},
        {True: 1},
        {("a", "b"): 1},
        {1, 2},
        b"bytes",
        object(),
        nested(MAX_DEPTH + 1),
        nested(100_000),
        circular(),
        10**5000,
        Hostile(a=1),
        Unspeakable(a=1),
        {Name("a"): 1, Name("a"): 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_refuses_what_would_not_come_back_the_same(value: Any) -> None:
    with pytest.raises(PayloadError):
        Payload.of(value)


@pytest.mark.parametrize("value", [EmptyAtFirst([{1: 2}]), KeylessAtFirst({1: 2})])
def test_keeps_what_was_looked_at_and_not_what_another_reading_gives(value: Any) -> None:
    assert not Payload.of(value).value


def test_takes_the_deepest_value_that_it_allows() -> None:
    assert Payload.of(nested(MAX_DEPTH - 1)).value == nested(MAX_DEPTH - 1)


def test_refuses_what_is_too_large(settings: Any) -> None:
    settings.AGENTRUNS = {"MAX_PAYLOAD_BYTES": 20}
    assert Payload.of("x" * 10).value == "x" * 10
    with pytest.raises(PayloadError, match="MAX_PAYLOAD_BYTES"):
        Payload.of("x" * 20)


def test_measures_the_size_as_it_is_stored(settings: Any) -> None:
    settings.AGENTRUNS = {"MAX_PAYLOAD_BYTES": 20}
    with pytest.raises(PayloadError):
        Payload.of("ü" * 10)


def test_a_tuple_comes_back_as_a_list() -> None:
    assert Payload.of({"a": (1, 2)}).value == {"a": [1, 2]}


@pytest.mark.parametrize("text", ["", "1:", "1:{", "2:{}", "{}", "1:" + "[" * 100_000])
def test_says_that_a_damaged_payload_is_unreadable(text: str) -> None:
    with pytest.raises(PayloadUnreadable):
        _ = Payload(text).value


@pytest.mark.django_db
def test_reading_a_row_with_a_damaged_payload_does_not_fail() -> None:
    run = queued()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentruns_agentrun SET request = 'nonsense'")
    damaged = AgentRun.objects.get(pk=run.pk).request
    assert damaged is not None
    with pytest.raises(PayloadUnreadable):
        _ = damaged.value


def test_equal_values_have_equal_digests() -> None:
    assert Payload.of({"a": 1, "b": 2}).digest == Payload.of({"b": 2, "a": 1}).digest
    assert Payload.of({"a": 1}).digest != Payload.of({"a": 2}).digest
    assert Payload.of([1, 2]).digest != Payload.of([2, 1]).digest


def test_the_stored_form_is_pinned() -> None:
    payload = Payload.of({"b": 1, "a": "\x00ü"})
    assert payload.text == '1:{"b":1,"a":"\\u0000\\u00fc"}'
    canonical = b'{"a":"\\u0000\\u00fc","b":1}'
    assert payload.digest == hashlib.sha256(canonical).hexdigest()


@pytest.mark.django_db
def test_refuses_to_store_what_is_no_payload() -> None:
    with pytest.raises(TypeError, match="takes a Payload"):
        AgentRun.objects.create(agent="a", request={"not": "a payload"})


@pytest.mark.parametrize(
    "text", ["\x00", "\ud800", "x" * 10_000, "a\x00b\udfffc", UnprintableError()]
)
def test_makes_any_text_storable(text: object) -> None:
    clean = storable(text)
    assert "\x00" not in clean
    assert len(clean) <= 2000
    clean.encode("utf-8")


@pytest.mark.parametrize("text", ["\x00", "\ud800", "x" * 201, 7, None])
def test_refuses_a_label_that_it_would_have_to_change(text: Any) -> None:
    with pytest.raises(PayloadError):
        label(text, "a name")


def test_keeps_a_label() -> None:
    assert label("ü" * 200, "a name") == "ü" * 200


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", "[-1e999]", '{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', "{"],
)
def test_what_a_person_typed_is_refused_where_it_would_be_altered(text: str) -> None:
    with pytest.raises(ValueError):
        typed_json(text)


def test_what_a_person_typed_is_decoded() -> None:
    assert typed_json('{"a": [1, 2.5, null, "x"], "b": {"a": 1e3}}') == {
        "a": [1, 2.5, None, "x"],
        "b": {"a": 1000.0},
    }
