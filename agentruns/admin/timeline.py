"""A run's steps drawn to scale, as shapes that a template turns into an inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from ..enums import EventKind, StepKind
from .wording import duration, moment

if TYPE_CHECKING:
    from ..models import AgentRun, Event, Step

WIDTH = 1000
ROW = 22
# The narrowest bar that can be seen.
LEAST = 3


@dataclass(frozen=True)
class Bar:
    """One step: where it stands, what it was, and the same in words."""

    x: int
    y: int
    width: int
    kind: str
    label: str


@dataclass(frozen=True)
class Mark:
    """A moment at which a segment began, or its worker was lost."""

    x: int
    kind: str
    label: str


@dataclass(frozen=True)
class Timeline:
    bars: list[Bar]
    marks: list[Mark]
    height: int
    begin: str
    length: str


MARKED = {
    EventKind.CLAIMED: "claimed",
    EventKind.LEASE_LOST: "lost",
    EventKind.DEAD_LETTERED: "lost",
}


def timeline(
    run: AgentRun, steps: Sequence[Step], events: Iterable[Event], now: datetime
) -> Timeline | None:
    """Draw these steps and events; None where nothing has begun."""
    marked = [event for event in events if event.kind in MARKED]
    starts = [step.started_at for step in steps] + [event.at for event in marked]
    if not starts:
        return None
    ends = [step.ended_at or now for step in steps] + [event.at for event in marked]
    begin, end = min(starts), run.finished_at or max(ends)
    scale = WIDTH / max((end - begin).total_seconds(), 0.001)

    def place(at: datetime) -> int:
        return max(0, min(WIDTH, round((at - begin).total_seconds() * scale)))

    bars = [bar(run, step, row, place, step.ended_at or end) for row, step in enumerate(steps)]
    marks = [
        Mark(place(e.at), MARKED[EventKind(e.kind)], f"{e.get_kind_display()}: {moment(e.at)}")
        for e in marked
    ]
    height = max(1, len(steps)) * ROW
    return Timeline(bars, marks, height, moment(begin), duration(end - begin))


def bar(
    run: AgentRun, step: Step, row: int, place: Callable[[datetime], int], ended: datetime
) -> Bar:
    x = min(place(step.started_at), WIDTH - LEAST)
    fenced = bool(run.pending_effect) and step.pk == run.pending_step_id
    kind = "fence" if fenced else "model" if step.kind == StepKind.MODEL else "tool"
    took = duration(ended - step.started_at) if step.ended_at else _("not ended")
    words = {"name": step.name, "kind": step.get_kind_display(), "took": took}
    label = _("%(name)s (%(kind)s), %(took)s") % words
    if fenced:
        label = _("%(label)s: the fence stands here") % {"label": label}
    return Bar(x, row * ROW, max(LEAST, place(ended) - x), kind, label)
