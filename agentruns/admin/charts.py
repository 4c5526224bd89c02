"""Counts over time and lengths of time, as shapes that a template turns into inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING

from .wording import moment, short_duration

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

# Units of the drawing; the page stretches it.
SLOT = 20
HEIGHT = 40
WIDTH = 1000


@dataclass(frozen=True)
class Bar:
    x: int
    y: int
    height: int
    label: str


@dataclass(frozen=True)
class Axis:
    """A stretch of time cut into slots; what began before `read_from` was not read."""

    begin: datetime
    slot: timedelta
    slots: int
    read_from: datetime | None = None

    @property
    def starts(self) -> list[datetime]:
        return [self.begin + self.slot * number for number in range(self.slots)]

    @property
    def unread(self) -> int:
        """How many of the first slots were not read at all."""
        if self.read_from is None or self.read_from <= self.begin:
            return 0
        return min(self.slots, (self.read_from - self.begin) // self.slot)

    @property
    def width(self) -> int:
        return self.slots * SLOT

    @property
    def unread_width(self) -> int:
        return self.unread * SLOT

    def count(self, moments: Iterable[datetime]) -> list[int]:
        """How many of these lie in each slot; what lies outside of them is left out."""
        found = Counter((at - self.begin) // self.slot for at in moments)
        return [found[number] for number in range(self.slots)]


@dataclass(frozen=True)
class Series:
    """One row of a chart: its own scale, so that few beside many are seen, too."""

    key: str
    label: _StrOrPromise
    axis: Axis
    counts: list[int]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def peak(self) -> int:
        return max(self.counts)

    @property
    def bars(self) -> list[Bar]:
        """A bar for each slot in which something happened, with the same in words."""
        scale = (HEIGHT - 2) / max(self.peak, 1)
        heights = [(number, count, ceil(count * scale)) for number, count in self.slots_read]
        return [
            Bar(
                number * SLOT + 2,
                HEIGHT - height,
                height,
                f"{moment(self.axis.starts[number])}: {count}",
            )
            for number, count, height in heights
            if count
        ]

    @property
    def slots_read(self) -> list[tuple[int, int]]:
        return list(enumerate(self.counts))[self.axis.unread :]


@dataclass(frozen=True)
class Chart:
    """Rows over one axis, and the same numbers as a table."""

    key: str
    axis: Axis
    rows: list[Series]

    @property
    def table(self) -> list[tuple[str, list[int] | None]]:
        """The begin of each slot and the number in each row; None where nothing was read."""
        columns = [row.counts for row in self.rows]
        return [
            (moment(start), None if number < self.axis.unread else [c[number] for c in columns])
            for number, start in enumerate(self.axis.starts)
        ]

    @property
    def begins(self) -> str:
        return moment(self.axis.begin)

    @property
    def ends(self) -> str:
        return moment(self.axis.begin + self.axis.slot * self.axis.slots)


@dataclass(frozen=True)
class Share:
    """One line of a bar chart: how many, and how wide its bar is beside the longest."""

    key: str
    label: _StrOrPromise
    count: int
    more: bool
    width: int


@dataclass(frozen=True)
class Spread:
    """How long one kind of work took: the median, and what 95 of 100 took at most."""

    agent: str
    name: str
    kind: _StrOrPromise
    count: int
    median: str
    slow: str
    median_x: int
    slow_x: int


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of an ordered, non-empty sample does not exceed."""
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def spread(
    agent: str, name: str, kind: _StrOrPromise, lengths: Iterable[float], longest: float
) -> Spread:
    """Lengths in seconds, drawn beside the `longest` of the chart."""
    ordered = sorted(lengths)
    median, slow = percentile(ordered, 0.5), percentile(ordered, 0.95)
    scale = WIDTH / max(longest, 0.001)
    return Spread(
        agent=agent,
        name=name,
        kind=kind,
        count=len(ordered),
        median=short_duration(median),
        slow=short_duration(slow),
        median_x=max(4, round(median * scale)),
        slow_x=max(4, round(slow * scale)),
    )
