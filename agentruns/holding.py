from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from .conf import conf
from .models import AgentRun

logger = logging.getLogger(__name__)


@dataclass
class HoldReport:
    """How many unfinished runs were (or, in a dry run, would be) dead-lettered, by reason."""

    dry_run: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, str]] = field(default_factory=list)

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

    Fences stand, so that what was in flight is an interrupted write. Each batch is a transaction; if
    the process dies here, the next call goes on. A run that can't be held is reported and does not
    stop the rest.
    """
    report = HoldReport(dry_run)
    after = 0
    while True:
        unfinished = AgentRun.objects.unfinished().filter(pk__gt=after).order_by("pk")
        pks = list(unfinished.values_list("pk", flat=True)[:batch_size])
        if not pks:
            return report
        after = pks[-1]
        with transaction.atomic(using=conf.DATABASE):
            for run in AgentRun.objects.for_judgement().unfinished().filter(pk__in=pks):
                _hold(run, by, reason, report)


def _hold(run: AgentRun, by: str, reason: str, report: HoldReport) -> None:
    try:
        ended = run.reason_if_given_up() if report.dry_run else run.hold(by=by, reason=reason)
        report.reasons[str(ended)] += 1
    except Exception as error:
        logger.exception("run %s could not be held", run.uuid)
        said = f"{type(error).__name__}: {error}"
        report.errors.append({"uuid": str(run.uuid), "agent": run.agent, "error": said})
