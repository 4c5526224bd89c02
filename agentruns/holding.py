from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import InterfaceError, OperationalError, transaction

from .conf import conf
from .models import AgentRun
from .sqlthread import close_connection

logger = logging.getLogger(__name__)


@dataclass
class HoldReport:
    """How many unfinished runs were (or, in a dry run, would be) dead-lettered, by reason."""

    dry_run: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, str]] = field(default_factory=list)

    def add(self, run: AgentRun | int, end: str | Exception) -> None:
        """Count one run; of a row that could not be read, only its primary key is known."""
        if isinstance(end, str):
            self.reasons[end] += 1
            return
        uuid, agent = (f"pk {run}", "") if isinstance(run, int) else (str(run.uuid), run.agent)
        self.errors.append({"uuid": uuid, "agent": agent, "error": f"{type(end).__name__}: {end}"})

    def as_dict(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "held": self.reasons.total(),
            "reasons": dict(self.reasons),
            "errors": self.errors,
        }


def hold_unfinished(
    *, by: str, reason: str, batch_size: int = 500, dry_run: bool = False
) -> HoldReport:
    """Dead-letter every run that has not ended: after a restore, or in a copy of a database.

    Fences stand, so that what was in flight is an interrupted write. Each batch is a transaction, and
    is counted when that has committed; if the process dies here, the next call goes on. A run that
    can't be held is reported and does not stop the rest.
    """
    report = HoldReport(dry_run)
    after = 0
    while True:
        unfinished = AgentRun.objects.unfinished().filter(pk__gt=after).order_by("pk")
        pks = list(unfinished.values_list("pk", flat=True)[:batch_size])
        if not pks:
            return report
        after = pks[-1]
        for run, end in _hold_rows(pks, by, reason, dry_run):
            report.add(run, end)


Outcome = tuple["AgentRun | int", "str | Exception"]


def _hold_rows(pks: list[int], by: str, reason: str, dry_run: bool) -> list[Outcome]:
    """Hold these runs in one transaction; one by one if that is lost, with its connection or not."""
    try:
        with transaction.atomic(using=conf.DATABASE):
            unfinished = AgentRun.objects.for_judgement().unfinished().filter(pk__in=pks)
            return [_hold_one(run, by, reason, dry_run) for run in unfinished]
    except (OperationalError, InterfaceError) as error:
        close_connection()  # it may be that which is broken
        if len(pks) > 1:
            return [end for pk in pks for end in _hold_rows([pk], by, reason, dry_run)]
        logger.exception("the run with the primary key %s could not be held", pks[0])
        return [(pks[0], error)]


def _hold_one(run: AgentRun, by: str, reason: str, dry_run: bool) -> Outcome:
    try:
        with transaction.atomic(using=conf.DATABASE):
            return run, str(run.reason_if_given_up() if dry_run else run.hold(by=by, reason=reason))
    except Exception as error:
        if transaction.get_rollback(using=conf.DATABASE):
            # A deadlock on MariaDB, or a lost connection: the batch is lost, not only this run.
            raise
        logger.exception("run %s could not be held", run.uuid)
        return run, error
