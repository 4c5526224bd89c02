"""The operator's desk: what died, or may be about to, in the middle of a write; worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.utils.translation import gettext_lazy as _

from ..enums import FAILURES, RunStatus, TerminationReason
from ..models import AgentRun
from ..models.querysets import ORDERS, list_order
from .wording import duration, moment, step_in_flight, what_is_known, write_name

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    from ..models.querysets import AgentRunQuerySet

SHOWN = 50
OTHER_FAILURES = tuple(
    reason
    for reason in FAILURES
    if reason not in (TerminationReason.INTERRUPTED_WRITE, TerminationReason.RETRIES_EXHAUSTED)
)


@dataclass(frozen=True)
class Group:
    """One section of the desk: which runs, and where the list shows all of them.

    Each part is in an order that an index serves; of several, the newest of all are shown.
    """

    key: str
    title: _StrOrPromise
    about: _StrOrPromise
    parts: Callable[[AgentRunQuerySet], list[AgentRunQuerySet]]
    filters: dict[str, str]

    @property
    def query(self) -> str:
        return urlencode(self.filters)


def dead_for(runs: AgentRunQuerySet, reason: TerminationReason) -> AgentRunQuerySet:
    return (
        runs.dead_lettered()
        .filter(termination_reason=reason)
        .order_by(*list_order(reasons=[reason]))
    )


GROUPS = (
    Group(
        "interrupted",
        _("Interrupted writes"),
        _("A write was started and its end is not known. A person decides. The oldest first."),
        lambda runs: [runs.unresolved().order_by(*ORDERS["unresolved"])],
        {"attention": "unresolved"},
    ),
    Group(
        "exhausted",
        _("Retries exhausted"),
        _("Taken back as often as is allowed. The newest first."),
        lambda runs: [dead_for(runs, TerminationReason.RETRIES_EXHAUSTED)],
        {"dead_lettered": TerminationReason.RETRIES_EXHAUSTED.value},
    ),
    Group(
        "not_retryable",
        _("Not retryable"),
        _("Ended by what a retry does not cure. The newest first."),
        lambda runs: [dead_for(runs, reason) for reason in OTHER_FAILURES],
        {"dead_lettered": "any"},
    ),
    Group(
        "untaken",
        _("Due and not taken"),
        _(
            "No worker serves their version or has time for them, or their agent has as many runs as "
            "it may have at a time. The oldest first."
        ),
        lambda runs: [runs.untaken().order_by(*ORDERS["untaken"])],
        {"attention": "untaken"},
    ),
    Group(
        "writing",
        _("Executing a write right now"),
        _("Nothing is wrong with these yet. Whose lease ends first comes first."),
        lambda runs: [runs.running().exclude(pending_effect="").order_by("lease_expires_at", "id")],
        {"attention": "fenced", "status__exact": "running"},
    ),
)


@dataclass(frozen=True)
class Row:
    run: AgentRun
    write: str
    since: str
    age: str
    known: str


@dataclass(frozen=True)
class Section:
    group: Group
    rows: list[Row]
    more: bool


def sections(runs: AgentRunQuerySet) -> Iterator[Section]:
    """The desk's sections. `runs` come with `read_at`, without payloads."""
    for group in GROUPS:
        found = first_of(group.parts(runs), SHOWN + 1)
        yield Section(group, [desk_row(run) for run in found[:SHOWN]], len(found) > SHOWN)


def first_of(parts: list[AgentRunQuerySet], count: int) -> list[AgentRun]:
    """The first runs of one part, or the newest dead letters of several, with a query for each."""
    found = [run for runs in parts for run in with_write(runs)[:count]]
    if len(parts) > 1:
        found.sort(key=lambda run: run.finished_at or run.created_at, reverse=True)
    return found[:count]


def with_write(runs: AgentRunQuerySet) -> AgentRunQuerySet:
    """Read the write in doubt along, without its payloads."""
    names = ("arguments", "result", "late_result")
    return runs.select_related("pending_step").defer(*(f"pending_step__{name}" for name in names))


def desk_row(run: AgentRun) -> Row:
    now = run.read_at  # type: ignore[attr-defined]
    step = step_in_flight(run)
    started = step.started_at if step else run.finished_at
    if run.status == RunStatus.QUEUED:
        started = run.available_at
    return Row(
        run=run,
        write=write_name(run) if run.pending_effect else "",
        since=moment(started),
        age=duration(now - started) if started else "",
        known=what_is_known(run, now),
    )
