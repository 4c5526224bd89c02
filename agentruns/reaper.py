from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from . import hotpath, registry, setreaper, slots, verification
from .dispatch import wake_all
from .models import AgentRun
from .rowbatch import decide_each, name_of
from .verdict import Action, Verdict

logger = logging.getLogger(__name__)

# A stale run, and what became of it.
Outcome = tuple["AgentRun | setreaper.StaleRun | int", "Verdict | Exception"]
ERROR = "error"
# How many runs a report names.
MOST_LISTED = 1000
# Of more woken runs than this, only their number is said.
MOST_WOKEN_LISTED = 20


@dataclass
class Reaped:
    """One stale run and what became of it; `error` where its verdict could not be applied."""

    uuid: str
    agent: str
    action: str
    reason: str = ""
    error: str = ""


@dataclass
class ReapReport:
    """What a sweep did (or, in a dry run, would do)."""

    # The first of them; all are counted.
    runs: list[Reaped] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    woken: int = 0
    woken_runs: list[UUID] = field(default_factory=list)
    asked: int = 0
    # Wake-ups that the broker did not take; a later sweep sends them again.
    not_sent: int = 0
    dry_run: bool = False

    def add(self, found: Iterable[Outcome]) -> None:
        for run, end in found:
            self.counts[end.action.value if isinstance(end, Verdict) else ERROR] += 1
            if self.has_room:
                self.runs.append(reaped(run, end))

    def add_set(self, batch: setreaper.Batch) -> None:
        for verdict, number in batch.verdicts.items():
            self.counts[verdict.action.value] += number
        self.runs += [reaped(*found) for found in batch.runs[: MOST_LISTED - len(self.runs)]]

    @property
    def has_room(self) -> bool:
        """Whether the next run is named, too."""
        return len(self.runs) < MOST_LISTED

    @property
    def reaped(self) -> int:
        return self.counts.total()

    @property
    def errors(self) -> list[Reaped]:
        return [run for run in self.runs if run.error]

    @property
    def failures(self) -> str:
        """What of the sweep did not succeed, in words; empty if all of it did."""
        failed = {
            "runs that could not be reaped": self.counts[ERROR],
            "wake-ups that could not be sent": self.not_sent,
        }
        return ", ".join(f"{what}: {count}" for what, count in failed.items() if count)

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "dry_run": self.dry_run,
            "requeued": counts[Action.REQUEUE.value],
            "dead_lettered": counts[Action.DEAD_LETTER.value],
            "cancelled": counts[Action.CANCEL.value],
            "errors": counts[ERROR],
            "woken": self.woken,
            "woken_runs": [str(uuid) for uuid in self.woken_runs],
            "asked": self.asked,
            "not_sent": self.not_sent,
            "runs": [vars(run) for run in self.runs],
            "not_listed": self.reaped - len(self.runs),
        }


def sweep(*, limit: int | None = None, batch_size: int = 1000, dry_run: bool = False) -> ReapReport:
    """Reap RUNNING runs whose lease has expired, then wake QUEUED ones that are due.

    Runs that were interrupted in a write whose destination can be asked are put before a worker.
    At most `limit` runs of each kind. Row locks are held for one batch at a time; rows that
    somebody else holds are left to them. A run whose verdict can't be applied is reported and does
    not stop the rest. If the process dies here, the next sweep goes on.
    """
    report = ReapReport(dry_run=dry_run)
    sets = setreaper.SetReaper() if hotpath.has_statements() and not dry_run else None
    after: int | None = 0
    while after is not None and (limit is None or report.reaped < limit):
        size = batch_size if limit is None else min(batch_size, limit - report.reaped)
        after = _reap_batch(report, sets, after, size)
    if dry_run:
        report.woken = _would_be_woken(limit)
        return report
    _wake(report, limit, batch_size)
    report.asked = _send(report, verification.take_due(batch_size))
    return report


def _reap_batch(
    report: ReapReport, sets: setreaper.SetReaper | None, after: int, size: int
) -> int | None:
    """Reap the next runs in one transaction: by sets where the database can, else row by row.

    Returns the highest primary key of them; None where there are none.
    """
    if sets is not None:
        try:
            batch = sets.reap(after, size, named=report.has_room)
        except Exception as error:
            logger.warning("%s in a batch of stale runs: row by row", type(error).__name__)
        else:
            report.add_set(batch)
            return batch.last
    stale = AgentRun.objects.stale().filter(pk__gt=after).order_by("pk")
    pks = list(stale.values_list("pk", flat=True)[:size])

    def reap(run: AgentRun) -> Verdict:
        return run.verdict(None) if report.dry_run else run.reap()

    report.add(decide_each(pks, AgentRun.objects.lock_stale, reap))
    return pks[-1] if pks else None


def reaped(run: AgentRun | setreaper.StaleRun | int, end: Verdict | Exception) -> Reaped:
    """One line of a report; of a row that can't be read, only its primary key is known."""
    uuid, agent = name_of(run)
    if isinstance(end, Verdict):
        return Reaped(uuid, agent, end.action.value, str(end.reason or ""))
    return Reaped(uuid, agent, ERROR, error=f"{type(end).__name__}: {end}")


def _would_be_woken(limit: int | None) -> int:
    limits = registry.limits()
    waiting: int = AgentRun.objects.to_wake(limits, _unlimited()).count()
    for agent, most in limits.items():
        next_ones = AgentRun.objects.due().filter(agent=agent)
        next_ones = next_ones.in_line() | next_ones.unwoken()
        waiting += next_ones[: most - AgentRun.objects.taken_slots(agent, most)].count()
    return waiting if limit is None else min(waiting, limit)


def _unlimited() -> list[str]:
    return [agent.name for agent in registry.agents() if agent.max_running is None]


def _wake(report: ReapReport, limit: int | None, batch_size: int) -> None:
    limits = registry.limits()
    left = limit
    while left is None or left > 0:
        size = batch_size if left is None else min(batch_size, left)
        uuids = AgentRun.objects.take_unwoken(size, limited=limits, unlimited=_unlimited())
        if not uuids:
            break
        left = left and left - len(uuids)
        _note_woken(report, uuids, wake_all(uuids))
    if limits:
        _wake_in_line(report, limits, limit, batch_size)


def _wake_in_line(
    report: ReapReport, limits: dict[str, int], limit: int | None, batch_size: int
) -> None:
    """Wake as many runs of each agent as it has free slots: a full one takes nothing from others."""
    while AgentRun.objects.put_in_line(limits, batch_size):
        pass
    left = limit
    for agent, most in limits.items():
        uuids = AgentRun.objects.take_in_line(agent, most, left)
        left = left and left - len(uuids)
        _note_woken(report, uuids, slots.wake(uuids))


def _note_woken(report: ReapReport, uuids: list[UUID], sent: int) -> None:
    report.woken += sent
    report.not_sent += len(uuids) - sent
    named = report.not_sent == 0 and report.woken <= MOST_WOKEN_LISTED
    report.woken_runs = [*report.woken_runs, *uuids] if named else []


def _send(report: ReapReport, uuids: list[UUID]) -> int:
    sent = wake_all(uuids)
    report.not_sent += len(uuids) - sent
    return sent
