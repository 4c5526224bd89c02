from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from .conf import conf
from .enums import TERMINAL, WAITING, RunStatus
from .guard import from_now, lock
from .models import AgentRun, Event, Step
from .models.querysets import AgentRunQuerySet

logger = logging.getLogger(__name__)

UNFINISHED = frozenset({RunStatus.QUEUED, *WAITING})


@dataclass
class PurgeReport:
    """What a purge deleted (or, in a dry run, would delete)."""

    settled: int = 0
    unfinished: int = 0
    steps: int = 0
    events: int = 0
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As data; a dry run counts no steps and no events, which would be to read them all."""
        uncounted = {"steps": None, "events": None} if self.dry_run else {}
        return {**asdict(self), **uncounted}


def purge(
    *,
    settled: timedelta | None = None,
    unfinished: timedelta | None = None,
    batch_size: int = 500,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Callable[[PurgeReport], object] = lambda report: None,
) -> PurgeReport:
    """Delete runs that settled longer ago than `settled`, and what `unfinished` is too old for.

    An unfinished run is one that is queued or waits for a person, accepted longer ago than that; a
    window of None deletes none of its kind. Never deleted: a run that is running, and one that is
    fenced and unresolved. Each batch is a transaction of its own, and leaves rows that somebody holds
    to the next purge. At most `limit` runs. `progress` is told after each batch, and at the end. If the process dies here, the next purge goes on.
    """
    report = PurgeReport(dry_run=dry_run)
    for status in sorted(TERMINAL | UNFINISHED):
        window = settled if status in TERMINAL else unfinished
        if window is None:
            continue
        old = purgeable(status, window)
        if dry_run:
            _count(report, status, old.count() if limit is None else old[:limit].count())
            continue
        since: datetime | None = None
        while size := _size(report, batch_size, limit):
            found = old if since is None else old.filter(created_at__gte=since)
            batch = list(found.order_by("created_at", "pk").values_list("pk", "created_at")[:size])
            deleted = _delete(report, old, [pk for pk, _at in batch])
            if not deleted:
                break
            _count(report, status, deleted)
            progress(report)
            since = batch[0][1]
    progress(report)
    return report


def purgeable(status: RunStatus, window: timedelta) -> AgentRunQuerySet:
    """The runs of this status whose time is over."""
    doubtful = Step.objects.unresolved_writes().filter(run_id=OuterRef("pk"))
    # A run is no younger than its end, and the age is what an index has.
    old = AgentRun.objects.filter(status=status, created_at__lt=from_now(-window))
    if status in TERMINAL:
        old = old.filter(finished_at__lt=from_now(-window))
    unresolved = Q(resolution="") & (~Q(pending_effect="") | Exists(doubtful))
    certain: AgentRunQuerySet = old.exclude(unresolved)
    return certain


def _size(report: PurgeReport, batch_size: int, limit: int | None) -> int:
    done = report.settled + report.unfinished
    return batch_size if limit is None else min(batch_size, limit - done)


def _count(report: PurgeReport, status: RunStatus, deleted: int) -> None:
    if status in TERMINAL:
        report.settled += deleted
    else:
        report.unfinished += deleted


def _delete(report: PurgeReport, old: AgentRunQuerySet, pks: list[int]) -> int:
    """Delete those of these runs that nobody holds and that may still be deleted."""
    with transaction.atomic(using=conf.DATABASE):
        held = lock(AgentRun.objects.filter(pk__in=pks), skip_locked=True)
        locked = list(held.values_list("pk", flat=True))
        going = list(old.filter(pk__in=locked).values_list("pk", flat=True))
        if going:
            # Of their own tables at once; what other apps have on a run goes as they declared it.
            report.events += Event.objects.filter(run_id__in=going)._raw_delete(conf.DATABASE)
            report.steps += Step.objects.filter(run_id__in=going)._raw_delete(conf.DATABASE)
            AgentRun.objects.filter(pk__in=going).delete()
    return len(going)
