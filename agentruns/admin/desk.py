"""The operator's desk: what died, or may be about to, in the middle of a write; worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.utils.translation import gettext_lazy as _

from ..enums import TerminationReason
from ..models import AgentRun
from .filters import FAILURES
from .wording import duration, moment, what_is_known, write_name

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
    """One section of the desk: which runs, in which order, and where the list shows all of them."""

    key: str
    title: _StrOrPromise
    about: _StrOrPromise
    select: Callable[[AgentRunQuerySet], AgentRunQuerySet]
    filters: dict[str, str]

    @property
    def query(self) -> str:
        return urlencode(self.filters)


GROUPS = (
    Group(
        "interrupted",
        _("Interrupted writes"),
        _("A write was started and its end is not known. A person decides. The oldest first."),
        lambda runs: (
            runs.unresolved()
            .filter(termination_reason=TerminationReason.INTERRUPTED_WRITE)
            .order_by("finished_at")
        ),
        {"attention": "unresolved"},
    ),
    Group(
        "exhausted",
        _("Retries exhausted"),
        _("Taken back as often as is allowed. The newest first."),
        lambda runs: (
            runs.dead_lettered()
            .filter(termination_reason=TerminationReason.RETRIES_EXHAUSTED)
            .order_by("-finished_at")
        ),
        {"dead_lettered": TerminationReason.RETRIES_EXHAUSTED.value},
    ),
    Group(
        "not_retryable",
        _("Not retryable"),
        _("Ended by what a retry does not cure. The newest first."),
        lambda runs: (
            runs.dead_lettered()
            .filter(termination_reason__in=OTHER_FAILURES)
            .order_by("-finished_at")
        ),
        {"dead_lettered": "any"},
    ),
    Group(
        "writing",
        _("Executing a write right now"),
        _("Nothing is wrong with these yet. Whose lease ends first comes first."),
        lambda runs: runs.running().exclude(pending_effect="").order_by("lease_expires_at"),
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
    """The desk's sections, each with one query. `runs` come with `read_at`, without payloads."""
    for group in GROUPS:
        found = list(with_write(group.select(runs))[: SHOWN + 1])
        yield Section(group, [desk_row(run) for run in found[:SHOWN]], len(found) > SHOWN)


def with_write(runs: AgentRunQuerySet) -> AgentRunQuerySet:
    """Read the write in doubt along, without its payloads."""
    names = ("arguments", "result", "late_result")
    return runs.select_related("pending_step").defer(*(f"pending_step__{name}" for name in names))


def desk_row(run: AgentRun) -> Row:
    now = run.read_at  # type: ignore[attr-defined]
    started = run.pending_step.started_at if run.pending_step else run.finished_at
    return Row(
        run=run,
        write=write_name(run) if run.pending_effect else "",
        since=moment(started),
        age=duration(now - started) if started else "",
        known=what_is_known(run, now),
    )
