from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from agentruns import setreaper
from agentruns.enums import EventKind, RunStatus
from agentruns.exceptions import LeaseLost
from agentruns.fields import Payload
from agentruns.models import AgentRun
from tests.factories import REPEATABLE, expire, fenced, history, reread, running, snapshot
from tests.servers.waiting import wait_until

from .rivals import (
    Rival,
    holding,
    reap_in_transaction,
    reaped_by_sweep,
    second_comes_while,
    together,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def test_a_renewal_that_holds_the_row_wins_against_the_reaper() -> None:
    run, claim = running()
    expire(run)
    sweeper = Rival(reaped_by_sweep)
    with holding(lambda: run.renew(claim)):
        sweeper.start()
        assert sweeper.outcome() == [], "the reaper leaves a row that somebody holds"
    assert reread(run).status == RunStatus.RUNNING
    run.renew(claim)


def test_a_renewal_that_lands_between_the_reapers_look_and_its_lock_wins() -> None:
    run, claim = running()
    expire(run)
    seen_stale = list(AgentRun.objects.stale().values_list("pk", flat=True))
    assert seen_stale == [run.pk]
    run.renew(claim)
    before = snapshot(run)
    reap_in_transaction_of_its_own(run)
    assert snapshot(run) == before


@contextmanager
def looked_and_not_locked(monkeypatch: pytest.MonkeyPatch, sweeper: Rival) -> Iterator[None]:
    """Hold the statement of a sweep up when it has its snapshot and no row yet."""
    status = "WHERE run.status = 'running'"
    assert setreaper.REAP.count(status) == 1
    waiting = f"{status} AND (SELECT pg_advisory_lock_shared(7)::text) = ''"
    monkeypatch.setattr(setreaper, "REAP", setreaper.REAP.replace(status, waiting))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")
        sweeper.start()
        wait_until(sweeper.waits_for_a_lock, what="the sweep to have looked")
        yield
        cursor.execute("SELECT pg_advisory_unlock(7)")


def taught(*examples: AgentRun) -> Rival:
    """A reaper by sets that has met such runs before, and so needs one statement for another."""
    sets = setreaper.SetReaper()
    for run in examples:
        expire(run)
    assert len(sets.reap(0, 10, named=True).runs) == len(examples)
    return Rival(lambda: [run.uuid for run, _verdict in sets.reap(0, 10, named=True).runs])


@pytest.mark.postgres
def test_a_renewal_that_lands_between_the_look_and_the_lock_of_a_set_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeper = taught(running()[0])
    run, claim = running()
    expire(run)
    with looked_and_not_locked(monkeypatch, sweeper):
        run.renew(claim)
        before = snapshot(run)
    assert sweeper.outcome() == []
    assert snapshot(run) == before


@pytest.mark.postgres
def test_a_cancel_that_lands_between_the_look_and_the_lock_of_a_set_is_heeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = fenced(REPEATABLE)[0]
    asked.cancel(by="somebody")
    sweeper = taught(asked, fenced(REPEATABLE)[0])
    run, *_rest = fenced(REPEATABLE)
    expire(run)
    with looked_and_not_locked(monkeypatch, sweeper):
        run.cancel(by="somebody")
    assert sweeper.outcome() == [str(run.uuid)]
    assert reread(run).status == RunStatus.CANCELLED


def reap_in_transaction_of_its_own(run: AgentRun) -> None:
    rival = Rival(lambda: atomically(run))
    rival.start()
    rival.outcome()


def atomically(run: AgentRun) -> None:
    from django.db import transaction

    with transaction.atomic():
        reap_in_transaction(run)()


def test_a_reaper_that_holds_the_row_wins_against_a_renewal() -> None:
    run, claim = running()
    expire(run)
    renewal = second_comes_while(reap_in_transaction(run), lambda: run.renew(claim))
    with pytest.raises(LeaseLost):
        renewal.outcome()
    row = reread(run)
    assert (row.status, row.requeue_count) == (RunStatus.QUEUED, 1)
    assert row.lease_expires_at is None


def test_a_completion_that_holds_the_row_wins_against_the_reaper() -> None:
    run, claim = running()
    expire(run)
    sweeper = Rival(reaped_by_sweep)
    with holding(lambda: run.complete(claim, Payload.of("done"))):
        sweeper.start()
        assert sweeper.outcome() == []
    assert reaped_by_sweep() == []
    assert reread(run).status == RunStatus.COMPLETED
    assert history(run)[-1] == EventKind.COMPLETED


def test_a_reaper_that_holds_the_row_wins_against_a_completion() -> None:
    run, claim = running()
    expire(run)
    completion = second_comes_while(
        reap_in_transaction(run), lambda: run.complete(claim, Payload.of("late"))
    )
    with pytest.raises(LeaseLost):
        completion.outcome()
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.status, row.output) == (RunStatus.QUEUED, None)


def test_two_reapers_share_the_work_and_repeat_none_of_it() -> None:
    runs = [running()[0] for _ in range(30)]
    for run in runs:
        expire(run)
    rivals = together(reaped_by_sweep, reaped_by_sweep, reaped_by_sweep)
    reaped = Counter(uuid for rival in rivals for uuid in rival.outcome())
    # What one reaper held while another looked is nobody's twice; a last sweep takes what is left.
    reaped.update(reaped_by_sweep())
    assert reaped == Counter(str(run.uuid) for run in runs)
    for run in runs:
        assert history(run).count(EventKind.REQUEUED) == 1
        assert reread(run).requeue_count == 1
