"""What waits, and since when: the same figures for the dashboard, the health command and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db.models.functions import Now

from .models import AgentRun, Step
from .models.querysets import ORDERS

if TYPE_CHECKING:
    from .models.querysets import AgentRunQuerySet

# How far is counted, so that no figure costs more in a bigger table.
COUNTED = 1_000

Since = Callable[["AgentRunQuerySet", AgentRun], datetime | None]


@dataclass(frozen=True)
class Kind:
    """Runs that wait for something: which, the oldest first, and since when one of them waits."""

    name: str
    about: str
    select: Callable[[AgentRunQuerySet], AgentRunQuerySet]
    since: Since


@dataclass(frozen=True)
class Figure:
    """How many of a kind wait (at most COUNTED; `more` if there are more), and the oldest."""

    name: str
    count: int
    more: bool = False
    oldest: AgentRun | None = None
    since: datetime | None = None
    age: timedelta = timedelta(0)


def first_asked(runs: AgentRunQuerySet, oldest: AgentRun) -> datetime | None:
    """When the oldest open question of the runs that come first was asked."""
    pks = list(runs.values_list("pk", flat=True)[:50])
    asked = Step.objects.open_questions().filter(run_id__in=pks)
    found: datetime | None = (
        asked.order_by("started_at").values_list("started_at", flat=True).first()
    )
    return found


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "unresolved",
            "interrupted writes on which nobody has decided",
            lambda runs: runs.unresolved().order_by(*ORDERS["unresolved"]),
            lambda runs, oldest: oldest.finished_at,
        ),
        Kind(
            "waiting",
            "runs that wait for a person",
            lambda runs: runs.waiting().order_by(*ORDERS["waiting"]),
            first_asked,
        ),
        Kind(
            "due",
            "runs that may be taken and that nobody took",
            lambda runs: runs.due().order_by(*ORDERS["due"]),
            lambda runs, oldest: oldest.available_at,
        ),
        Kind(
            "stale",
            "runs whose lease ran out and that nobody reaped",
            lambda runs: runs.stale().order_by("lease_expires_at", "id"),
            lambda runs, oldest: oldest.lease_expires_at,
        ),
    )
}


def figures() -> list[Figure]:
    return [figure(name) for name in KINDS]


def figure(name: str) -> Figure:
    """Read one figure by the database's clock: three queries at most, none without a bound."""
    kind = KINDS[name]
    runs = kind.select(AgentRun.objects.without_payloads().annotate(read_at=Now()))
    oldest = runs.first()
    if oldest is None:
        return Figure(name, 0)
    counted = runs[: COUNTED + 1].count()
    since = kind.since(runs, oldest)
    return Figure(
        name=name,
        count=min(counted, COUNTED),
        more=counted > COUNTED,
        oldest=oldest,
        since=since,
        age=oldest.read_at - since if since else timedelta(0),  # type: ignore[attr-defined]
    )
