from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import DataError, transaction

from . import verification
from .conf import conf
from .dispatch import wake_all
from .models import AgentRun
from .verdict import Action, Verdict

logger = logging.getLogger(__name__)


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

    runs: list[Reaped] = field(default_factory=list)
    woken: int = 0
    asked: int = 0
    dry_run: bool = False

    @property
    def errors(self) -> list[Reaped]:
        return [run for run in self.runs if run.error]

    def as_dict(self) -> dict[str, Any]:
        counts = Counter(run.action for run in self.runs)
        return {
            "dry_run": self.dry_run,
            "requeued": counts[Action.REQUEUE.value],
            "dead_lettered": counts[Action.DEAD_LETTER.value],
            "cancelled": counts[Action.CANCEL.value],
            "errors": len(self.errors),
            "woken": self.woken,
            "asked": self.asked,
            "runs": [vars(run) for run in self.runs],
        }


def sweep(*, limit: int | None = None, batch_size: int = 500, dry_run: bool = False) -> ReapReport:
    """Reap RUNNING runs whose lease has expired, then wake QUEUED ones that are due.

    Runs that were interrupted in a write whose destination can be asked are put before a worker.
    At most `limit` runs of each kind. Row locks are held for one batch at a time; rows that
    somebody else holds are left to them. A run whose verdict can't be applied is reported and does
    not stop the rest. If the process dies here, the next sweep goes on.
    """
    report = ReapReport(dry_run=dry_run)
    after = 0
    while limit is None or len(report.runs) < limit:
        size = batch_size if limit is None else min(batch_size, limit - len(report.runs))
        pks = list(
            AgentRun.objects.stale()
            .filter(pk__gt=after)
            .order_by("pk")
            .values_list("pk", flat=True)[:size]
        )
        if not pks:
            break
        after = pks[-1]
        report.runs += _reap_batch(pks, dry_run)
    report.woken = _wake(limit, batch_size, dry_run)
    if not dry_run:
        report.asked = wake_all(verification.take_due(batch_size))
    return report


def _reap_batch(pks: list[int], dry_run: bool) -> list[Reaped]:
    """Reap these runs in one transaction; one by one if a row can't even be read."""
    try:
        with transaction.atomic(using=conf.DATABASE):
            return [_reap_one(run, dry_run) for run in AgentRun.objects.lock_stale(pks)]
    except DataError as error:
        if len(pks) > 1:
            return [reaped for pk in pks for reaped in _reap_batch([pk], dry_run)]
        logger.exception("the run with the primary key %s can't be read", pks[0])
        return [Reaped(f"pk {pks[0]}", "", "error", error=f"{type(error).__name__}: {error}")]


def _reap_one(run: AgentRun, dry_run: bool) -> Reaped:
    try:
        with transaction.atomic(using=conf.DATABASE):
            verdict = run.verdict(None) if dry_run else run.reap()
    except Exception as error:
        logger.exception("run %s could not be reaped", run.uuid)
        return Reaped(str(run.uuid), run.agent, "error", error=f"{type(error).__name__}: {error}")
    return reaped(run, verdict)


def reaped(run: AgentRun, verdict: Verdict) -> Reaped:
    return Reaped(str(run.uuid), run.agent, verdict.action.value, str(verdict.reason or ""))


def _wake(limit: int | None, batch_size: int, dry_run: bool) -> int:
    if dry_run:
        waiting: int = AgentRun.objects.unwoken().count()
        return waiting if limit is None else min(waiting, limit)
    taken = woken = 0
    while limit is None or taken < limit:
        size = batch_size if limit is None else min(batch_size, limit - taken)
        uuids = AgentRun.objects.take_unwoken(size)
        if not uuids:
            break
        taken += len(uuids)
        woken += wake_all(uuids)
    return woken
