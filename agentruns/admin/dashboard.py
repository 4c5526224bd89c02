"""The dashboard: how the runs fare. What it reads is bounded, whatever the size of the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .. import figures
from ..enums import (
    FAILURES,
    QUESTIONS,
    EventKind,
    RunStatus,
    StepKind,
    StepState,
    TerminationReason,
)
from ..models import AgentRun, Event, Step
from .charts import WIDTH, Axis, Chart, Series, Share, Spread, percentile, spread
from .wording import duration, label_of, moment

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.utils.functional import _StrOrPromise


# How many of the newest rows are read, and how far is counted. The page says so.
READ_RUNS = 5_000
READ_EVENTS = 10_000
READ_STEPS = 2_000
SHOWN_SPREADS = 30


@dataclass(frozen=True)
class Window:
    key: str
    title: _StrOrPromise
    slot: timedelta
    slots: int

    def axis(self, now: datetime, read_from: datetime | None) -> Axis:
        return Axis(now - self.slot * self.slots, self.slot, self.slots, read_from)


WINDOWS = (
    Window("hour", _("the last hour"), timedelta(minutes=5), 12),
    Window("day", _("the last 24 hours"), timedelta(hours=1), 24),
    Window("week", _("the last 7 days"), timedelta(hours=6), 28),
    Window("month", _("the last 30 days"), timedelta(days=1), 30),
)
DEFAULT = WINDOWS[1]

MOVES = (
    (EventKind.REQUEUED, _("retried by a machine")),
    (EventKind.RETRIED, _("retried by a person")),
    (EventKind.LEASE_LOST, _("lost their worker")),
    (EventKind.DEAD_LETTERED, _("dead-lettered")),
)


@dataclass(frozen=True)
class Tile:
    """Something that waits: how many of it, and the oldest."""

    key: str
    title: _StrOrPromise
    about: _StrOrPromise
    page: str
    query: str
    count: int
    more: bool
    oldest: AgentRun | None
    age: str
    since: str


@dataclass(frozen=True)
class Dashboard:
    window: Window
    tiles: list[Tile]
    runs: Chart
    runs_read_from: str
    moves: Chart
    moves_read_from: str
    dead_letters: list[Share]
    spreads: list[Spread]
    more_spreads: int
    steps_read: int
    slowest: str


def dashboard(key: str | None) -> Dashboard:
    """Read the dashboard for the window of this key."""
    window = next((window for window in WINDOWS if window.key == key), DEFAULT)
    now = timezone.now()
    status_chart, runs_read_from = runs_over_time(window, now)
    moves_chart, moves_read_from = moves_over_time(window, now)
    spreads, more_spreads, steps_read = time_per_step()
    return Dashboard(
        window=window,
        tiles=tiles(),
        runs=status_chart,
        runs_read_from=runs_read_from,
        moves=moves_chart,
        moves_read_from=moves_read_from,
        dead_letters=dead_letters(now - window.slot * window.slots),
        spreads=spreads,
        more_spreads=more_spreads,
        steps_read=steps_read,
        slowest=max((s.slow_x, s.slow) for s in spreads)[1] if spreads else "",
    )


# What waits.


TILES = (
    ("unresolved", _("Interrupted writes"), _("Nobody has decided on them yet."), "desk"),
    ("waiting", _("Runs that wait for a person"), _("For an approval or an answer."), "changelist"),
    (
        "due",
        _("Runs that nobody took"),
        _("Queued and due. Many, or old: workers are missing."),
        "changelist",
    ),
    ("stale", _("Leases that ran out"), _("Old ones: no reaper sweeps."), "changelist"),
)


def tiles() -> list[Tile]:
    return [tile(*told) for told in TILES]


def tile(key: str, title: _StrOrPromise, about: _StrOrPromise, page: str) -> Tile:
    counted = figures.figure(key)
    return Tile(
        key=key,
        title=title,
        about=about,
        page=f"admin:agentruns_agentrun_{page}",
        query="" if page == "desk" else f"?attention={key}",
        count=counted.count,
        more=counted.more,
        oldest=counted.oldest,
        age=duration(counted.age) if counted.since else "",
        since=moment(counted.since),
    )


# What happened.


def newest(rows: QuerySet[Any], count: int, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of the newest rows, by the primary key: nothing else is read."""
    return list(rows.order_by("-pk").values_list(*columns)[:count])


def reach(moments: list[datetime], count: int) -> datetime | None:
    """Since when everything was read; None where nothing was left out."""
    return min(moments) if len(moments) == count else None


def runs_over_time(window: Window, now: datetime) -> tuple[Chart, str]:
    """When the newest runs were accepted, by what has become of them."""
    rows = newest(AgentRun.objects.all(), READ_RUNS, "status", "created_at")
    read_from = reach([at for _status, at in rows], READ_RUNS)
    chart = over_time("runs", window.axis(now, read_from), rows, RunStatus.choices)
    return chart, told(chart.axis)


def moves_over_time(window: Window, now: datetime) -> tuple[Chart, str]:
    """When runs were retried, lost their worker or were dead-lettered, by the history."""
    rows = newest(Event.objects.all(), READ_EVENTS, "kind", "at")
    read_from = reach([at for _kind, at in rows], READ_EVENTS)
    labels = [(kind.value, label) for kind, label in MOVES]
    chart = over_time("moves", window.axis(now, read_from), rows, labels)
    return chart, told(chart.axis)


def over_time(
    key: str, axis: Axis, rows: Iterable[tuple[Any, ...]], labels: Iterable[tuple[str, Any]]
) -> Chart:
    moments: dict[str, list[datetime]] = defaultdict(list)
    for name, at in rows:
        moments[name].append(at)
    series = [Series(name, label, axis, axis.count(moments[name])) for name, label in labels]
    return Chart(key, axis, series)


def told(axis: Axis) -> str:
    """Since when a chart is complete; nothing where all of it is."""
    return moment(axis.read_from) if axis.read_from and axis.read_from > axis.begin else ""


def dead_letters(since: datetime) -> list[Share]:
    """How many runs were dead-lettered for each reason and are so still, the most first."""
    counts = {reason: dead_lettered(reason, since) for reason in FAILURES}
    scale = WIDTH / max(1, *counts.values())
    shares = [
        Share(
            key="interrupted" if reason is TerminationReason.INTERRUPTED_WRITE else "other",
            label=reason.label,
            count=min(count, figures.COUNTED),
            more=count > figures.COUNTED,
            width=round(min(count, figures.COUNTED) * scale),
        )
        for reason, count in counts.items()
    ]
    return sorted(shares, key=lambda share: -share.count)


def dead_lettered(reason: TerminationReason, since: datetime) -> int:
    runs = AgentRun.objects.dead_lettered().filter(termination_reason=reason)
    found: int = runs.filter(finished_at__gte=since)[: figures.COUNTED + 1].count()
    return found


def time_per_step() -> tuple[list[Spread], int, int]:
    """What took longest, how many kinds are left out, and how many steps were read.

    Only of the newest steps, and of these what a worker recorded: nobody knows how long a write in
    doubt took, nor one that a verdict settled, and what people are asked is no work of ours.
    """
    columns = ("run__agent", "name", "kind", "state", "started_at", "ended_at")
    rows = newest(Step.objects.all(), READ_STEPS, *columns)
    lengths: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for agent, name, kind, state, started, ended in rows:
        if state == StepState.RECORDED and kind not in QUESTIONS and ended is not None:
            lengths[agent, name, kind].append((ended - started).total_seconds())
    slow = {key: percentile(sorted(times), 0.95) for key, times in lengths.items()}
    shown = sorted(slow, key=lambda key: -slow[key])[:SHOWN_SPREADS]
    longest = max(slow.values(), default=0.0)
    spreads = [
        spread(agent, name, label_of(StepKind, kind), lengths[agent, name, kind], longest)
        for agent, name, kind in shown
    ]
    return spreads, len(slow) - len(shown), len(rows)
