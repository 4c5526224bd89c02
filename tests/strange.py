"""Values that a stranger may hand over: JSON, what only looks like it, and what is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from agentruns.fields import MAX_DEPTH

# What a payload may take, in these tests.
MOST_BYTES = 20_000

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=30)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**4299, -(10**4299), 2**64, -0.0, "\x00", "\ud800"]),
    st.floats(),
    TEXT,
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@dataclass
class Record:
    name: str = "ann"


class Unreadable:
    """An object that fails at whatever it is asked."""

    def fail(self, *args: Any) -> Any:
        raise RuntimeError("not today")

    __str__ = __repr__ = __iter__ = __len__ = __eq__ = __hash__ = fail
    __bool__ = fail
    value = property(fail)
    keys = property(fail)


class Huge(int):
    """A number of more digits than Python writes, which a failing test can print."""

    def __repr__(self) -> str:
        return "Huge()"


class EmptyAtFirst(list[Any]):
    """A list that shows nothing of what it has to whoever reads it first."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return iter(()) if self.reads == 1 else super().__iter__()


class KeylessAtFirst(dict[Any, Any]):
    """A mapping that shows nothing of what it has to whoever reads it first."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return {}.items() if self.reads == 1 else super().items()


class Name(str):
    """A text that equals nothing, so that a mapping holds the same name twice."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append({"self": value})
    return value


def generator() -> Iterator[int]:
    yield 1


STRANGE: list[Callable[[], Any]] = [
    lambda: b"\xff\x00",
    lambda: bytearray(b"abc"),
    lambda: Huge(10**4300),
    lambda: Decimal("1.10"),
    lambda: datetime(2030, 1, 1, tzinfo=UTC),
    lambda: {1, 2},
    lambda: range(3),
    lambda: 1j,
    lambda: {1: "one", "1": "another"},
    lambda: {None: 1},
    lambda: {True: 1},
    lambda: EmptyAtFirst([{1: 2}]),
    lambda: EmptyAtFirst([nested(MAX_DEPTH * 10)]),
    lambda: KeylessAtFirst({1: 2}),
    lambda: {Name("a"): 1, Name("a"): 2},
    lambda: nested(MAX_DEPTH - 1),
    lambda: nested(MAX_DEPTH),
    lambda: nested(MAX_DEPTH + 1),
    lambda: nested(50_000),
    lambda: "x" * (MOST_BYTES - 4),
    lambda: "x" * (MOST_BYTES - 3),
    lambda: "\ud800" * MOST_BYTES,
    circular,
    generator,
    Record,
    Unreadable,
    object,
    lambda: RuntimeError,
]

strange = st.sampled_from(STRANGE).map(lambda make: make())
values = st.one_of(
    JSON,
    strange,
    st.lists(strange, min_size=1, max_size=2),
    strange.map(lambda value: {"inner": value}),
)


def same(given: Any, kept: Any) -> bool:
    """Whether what is kept is what was given; a tuple is kept as a list."""
    if isinstance(given, (EmptyAtFirst, KeylessAtFirst)):
        return not kept
    if isinstance(given, dict):
        items = list(dict.items(given))
        return (
            type(kept) is dict
            and len(kept) == len(items)
            and all(
                isinstance(key, str) and str(key) in kept and same(item, kept[str(key)])
                for key, item in items
            )
        )
    if isinstance(given, (list, tuple)):
        return type(kept) is list and len(kept) == len(given) and all(map(same, given, kept))
    if isinstance(given, float) and math.isnan(given):
        return isinstance(kept, float) and math.isnan(kept)
    if not isinstance(given, (bool, int, float, str, type(None))):
        return False
    return isinstance(given, type(kept)) and given == kept and str(given) == str(kept)


def examples(request: pytest.FixtureRequest) -> settings:
    """Half as many as `--examples` says: each of them executes runs."""
    return settings(
        max_examples=max(1, request.config.getoption("--examples") // 2),
        deadline=None,
        # Each example executes runs: to make one smaller takes minutes.
        phases=(Phase.reuse, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
