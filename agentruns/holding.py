from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .models import AgentRun
from .rowbatch import decide_each, name_of


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
        uuid, agent = name_of(run)
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

    def hold(run: AgentRun) -> str:
        return str(run.reason_if_given_up() if dry_run else run.hold(by=by, reason=reason))

    def unfinished_of(pks: list[int]) -> Iterable[AgentRun]:
        runs: Iterable[AgentRun] = AgentRun.objects.for_judgement().unfinished().filter(pk__in=pks)
        return runs

    report = HoldReport(dry_run)
    after = 0
    while True:
        unfinished = AgentRun.objects.unfinished().filter(pk__gt=after).order_by("pk")
        pks = list(unfinished.values_list("pk", flat=True)[:batch_size])
        if not pks:
            return report
        after = pks[-1]
        for run, end in decide_each(pks, unfinished_of, hold):
            report.add(run, end)
