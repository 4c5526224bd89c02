from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from agentruns.enums import Resolution, RunStatus
from agentruns.models import AgentRun, Event, Step
from agentruns.retention import UNFINISHED, PurgeReport, purge
from tests.factories import (
    call,
    claim,
    dead_lettered_write,
    empty_fence_by_hand,
    fenced,
    queued,
    reread,
    returned,
    running,
    with_status,
)

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
TERMINAL = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


def age(run: AgentRun, by: timedelta = 2 * DAY) -> AgentRun:
    AgentRun.objects.filter(pk=run.pk).write_guarded(created_at=F("created_at") - by)
    settled = AgentRun.objects.filter(pk=run.pk, finished_at__isnull=False)
    settled.write_guarded(finished_at=F("finished_at") - by)
    return run


def old(status: RunStatus) -> AgentRun:
    return age(with_status(status))


def left() -> set[int]:
    return set(AgentRun.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("status", TERMINAL)
def test_what_settled_before_the_window_goes_with_all_that_belongs_to_it(status: RunStatus) -> None:
    old(status)
    young = with_status(status)
    report = purge(settled=DAY)
    assert (report.settled, report.unfinished) == (1, 0)
    assert report.events >= 2
    assert left() == {young.pk}
    assert set(Event.objects.values_list("run", flat=True)) == {young.pk}
    assert not Step.objects.exclude(run=young).exists()


@pytest.mark.parametrize("status", sorted(UNFINISHED))
def test_what_is_unfinished_has_a_window_of_its_own(status: RunStatus) -> None:
    run, young = old(status), with_status(status)
    assert purge(settled=DAY).unfinished == 0
    assert run.pk in left()
    assert purge(unfinished=3 * DAY).unfinished == 0
    assert purge(unfinished=DAY).unfinished == 1
    assert left() == {young.pk}


def test_what_was_accepted_long_ago_but_settled_lately_stays() -> None:
    run = with_status(RunStatus.COMPLETED)
    AgentRun.objects.filter(pk=run.pk).write_guarded(created_at=F("created_at") - 2 * DAY)
    assert purge(settled=DAY).settled == 0


def test_a_running_run_stays_however_old_it_is() -> None:
    run, _held = running()
    age(run)
    purge(settled=timedelta(0), unfinished=timedelta(0))
    assert left() == {run.pk}


def test_an_interrupted_write_stays_until_somebody_has_resolved_it() -> None:
    run, _step = dead_lettered_write()
    age(run)
    assert purge(settled=DAY).settled == 0
    row = reread(run)
    row.resolve(
        Resolution.LEFT, by="somebody", reason="it is known", digest=row.resolution_digest()
    )
    assert purge(settled=DAY).settled == 1


def test_it_stays_where_its_fence_was_emptied_by_hand() -> None:
    run, _step = dead_lettered_write()
    empty_fence_by_hand(age(run))
    assert purge(settled=DAY).settled == 0


def test_a_recorded_write_is_no_reason_to_stay() -> None:
    run, held, step = fenced()
    run.record_step(held, call(), returned(), step)
    run.complete(held, returned().result)  # type: ignore[arg-type]
    age(run)
    report = purge(settled=DAY)
    assert (report.settled, report.steps) == (1, 1)


def test_batches_are_bounded_and_told_of() -> None:
    for _ in range(5):
        old(RunStatus.CANCELLED)
    told: list[int] = []
    report = purge(settled=DAY, batch_size=2, progress=lambda done: told.append(done.settled))
    assert report.settled == 5
    assert told == [2, 4, 5, 5]


def test_a_limit_holds() -> None:
    runs = [old(RunStatus.CANCELLED) for _ in range(4)]
    assert purge(settled=DAY, batch_size=2, limit=3).settled == 3
    assert left() == {runs[3].pk}, "the oldest go first"


def test_a_dry_run_counts_and_deletes_nothing() -> None:
    run, waiting = old(RunStatus.COMPLETED), old(RunStatus.QUEUED)
    report = purge(settled=DAY, unfinished=DAY, dry_run=True)
    assert report == PurgeReport(settled=1, unfinished=1, dry_run=True)
    assert left() == {run.pk, waiting.pk}


@pytest.mark.server
def test_a_run_that_somebody_holds_is_left_to_the_next_purge() -> None:
    from tests.races.rivals import holding

    held, free = old(RunStatus.CANCELLED), old(RunStatus.CANCELLED)

    def hold() -> Any:
        return AgentRun.objects.lock_one(pk=held.pk)

    with holding(hold):
        assert purge(settled=DAY).settled == 1
    assert left() == {held.pk}
    assert free.pk not in left()
    assert purge(settled=DAY).settled == 1


@pytest.mark.server
def test_a_run_that_was_taken_meanwhile_stays() -> None:
    """Judged again under the lock: it was queued when it was found."""
    from agentruns.retention import _delete, purgeable

    run = age(queued())
    found = purgeable(RunStatus.QUEUED, DAY)
    assert list(found) == [run]
    claim(run)
    with transaction.atomic():
        assert _delete(PurgeReport(), found, [run.pk]) == 0
    assert left() == {run.pk}
