"""A run's steps drawn to scale, as shapes that a template turns into an inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from ..enums import WAITING, EventKind, StepKind, StepState
from .wording import duration, moment, took

if TYPE_CHECKING:
    from ..models import AgentRun, Event, Step

WIDTH = 1000
# The narrowest bar that can be seen.
LEAST = 3
# Steps that ask a person.
ASKED = frozenset({StepKind.APPROVAL, StepKind.INPUT})


@dataclass(frozen=True)
class Bar:
    """One step: where it stands, what it was, and all of that in words."""

    x: int
    width: int
    kind: str
    name: str
    what: str
    took: str
    label: str

    @property
    def fenced(self) -> bool:
        return self.kind == "fence"


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
    begin: str
    end: str
    length: str


MARKED = {
    EventKind.CLAIMED: "claimed",
    EventKind.LEASE_LOST: "lost",
    EventKind.DEAD_LETTERED: "lost",
}


def title_of(step: Step) -> str:
    """What a step is called: an approval has the name of the call that is asked for."""
    if step.kind == StepKind.APPROVAL:
        return _("approval of %(call)s") % {"call": step.name}
    return step.name


def waits(run: AgentRun, step: Step) -> bool:
    """Whether a person is still waited for in this step."""
    return run.status in WAITING and step.kind in ASKED and step.state == StepState.STARTED


def timeline(
    run: AgentRun, steps: Sequence[Step], events: Iterable[Event], now: datetime
) -> Timeline | None:
    """Draw these steps and events; None where nothing has begun."""
    marked = [event for event in events if event.kind in MARKED]
    starts = [step.started_at for step in steps] + [event.at for event in marked]
    if not starts:
        return None
    ends = [drawn_until(run, step, now) for step in steps] + [event.at for event in marked]
    begin, end = min(starts), run.finished_at or max(ends)
    scale = WIDTH / max((end - begin).total_seconds(), 0.001)

    def place(at: datetime) -> int:
        return max(0, min(WIDTH, round((at - begin).total_seconds() * scale)))

    bars = [bar(run, step, place, drawn_until(run, step, end)) for step in steps]
    marks = [
        Mark(place(e.at), MARKED[EventKind(e.kind)], f"{e.get_kind_display()}: {moment(e.at)}")
        for e in marked
    ]
    return Timeline(bars, marks, moment(begin), moment(end), duration(end - begin))


def drawn_until(run: AgentRun, step: Step, end: datetime) -> datetime:
    """Where a step's bar ends: one of no known end is drawn on only while it is open."""
    is_open = waits(run, step) or is_fenced(run, step)
    return step.ended_at or (end if is_open else step.started_at)


def is_fenced(run: AgentRun, step: Step) -> bool:
    return bool(run.pending_effect) and step.pk == run.pending_step_id


def bar(run: AgentRun, step: Step, place: Callable[[datetime], int], ended: datetime) -> Bar:
    x = min(place(step.started_at), WIDTH - LEAST)
    fenced = is_fenced(run, step)
    kind = "fence" if fenced else "model" if step.kind == StepKind.MODEL else "tool"
    length = _("waiting") if waits(run, step) else took(step)
    words = {"name": title_of(step), "kind": step.get_kind_display(), "took": length}
    label = _("%(name)s (%(kind)s), %(took)s") % words
    if fenced:
        label = _("%(label)s: the fence stands here") % {"label": label}
    width = max(LEAST, place(ended) - x)
    return Bar(x, width, kind, title_of(step), str(step.get_kind_display()), length, label)
