from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db.models.functions import Now

from agentruns.conf import conf as app_conf
from agentruns.exceptions import LeaseLost
from agentruns.guard import from_now
from agentruns.models import AgentRun
from agentruns.segment import Segment
from tests.factories import (
    OWNER,
    READ,
    WRITE,
    claim,
    executed,
    expire,
    lose,
    make_due,
    reap,
    running,
)
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def conf(settings: Any) -> Any:
    def override(**values: float) -> None:
        settings.AGENTRUNS = {**settings.AGENTRUNS, **values}

    return override


def is_covered(run: AgentRun, seconds: float = 0) -> bool:
    """Whether the lease goes on for longer than this, by the database's clock."""
    return bool(AgentRun.objects.filter(pk=run.pk, lease_expires_at__gt=from_now(seconds)).exists())


def test_the_first_beat_lands_before_the_first_step(conf: Any) -> None:
    """A run that was nearly out of time when it was claimed is covered again before it acts."""
    conf(LEASE_SECONDS=100, HEARTBEAT_SECONDS=90)
    run, held = running()
    AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=Now())
    segment = Segment(run, held)
    try:
        segment.open()
        assert is_covered(run, seconds=50)
    finally:
        segment.close()


def test_a_segment_whose_run_is_gone_already_does_not_open() -> None:
    run, held = running()
    expire(run)
    reap(run)
    segment = Segment(run, held)
    try:
        with pytest.raises(LeaseLost):
            segment.open()
    finally:
        segment.close()


def test_a_blocking_body_does_not_starve_it(conf: Any) -> None:
    conf(LEASE_SECONDS=20, HEARTBEAT_SECONDS=0.05)

    def agent(segment: Segment) -> None:
        def block(key: str) -> None:
            for _round in range(3):
                AgentRun.objects.filter(pk=segment.run.pk).write_guarded(lease_expires_at=Now())
                wait_until(lambda: is_covered(segment.run, 10), what="a renewal")

        segment.step("write", block, effect=WRITE)

    assert executed(agent).status == "completed"


def test_it_stops_with_its_segment(conf: Any) -> None:
    conf(HEARTBEAT_SECONDS=0.05)
    executed(lambda segment: None)

    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "agentruns" in thread.name]

    wait_until(lambda: not left(), what="the end of its threads")


def hang_longer_than_a_step_may(segment: Segment) -> None:
    """Only its clock is set back here, so that no other step of the test has to be quick."""
    segment.heartbeat._progress_at -= 1.5 * app_conf.MAX_STEP_SECONDS
    wait_until(lambda: segment.heartbeat._hung, what="a beat that is left out")


def test_it_does_not_renew_what_hangs_longer_than_a_step_may(conf: Any) -> None:
    conf(LEASE_SECONDS=20, HEARTBEAT_SECONDS=0.05)

    def agent(segment: Segment) -> None:
        def hang(key: str) -> None:
            hang_longer_than_a_step_may(segment)
            # Long enough for many beats, if there were any.
            row = AgentRun.objects.filter(pk=segment.run.pk)
            row.write_guarded(lease_expires_at=from_now(1))
            stale = AgentRun.objects.stale().filter(pk=segment.run.pk)
            wait_until(stale.exists, what="the end of the lease")
            reap(segment.run)

        segment.step("read", hang, effect=READ)

    run = executed(agent)
    assert (run.status, run.requeue_count) == ("queued", 1)


def test_it_renews_again_when_the_hanging_step_was_recorded_after_all(conf: Any) -> None:
    conf(LEASE_SECONDS=20, HEARTBEAT_SECONDS=0.05)

    def agent(segment: Segment) -> None:
        segment.step("hang", lambda key: hang_longer_than_a_step_may(segment), effect=READ)
        AgentRun.objects.filter(pk=segment.run.pk).write_guarded(lease_expires_at=Now())
        wait_until(lambda: is_covered(segment.run, 10), what="a renewal")

    assert executed(agent).status == "completed"


def test_no_new_step_starts_when_it_was_told_that_the_run_is_lost(conf: Any) -> None:
    conf(HEARTBEAT_SECONDS=0.05)
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        lose(segment.run)
        make_due(segment.run)
        claim(segment.run, OWNER)
        wait_until(lambda: segment.heartbeat.lost is not None, what="a refused beat")
        segment.step("read", lambda key: bodies.append("read"), effect=READ)

    run = executed(agent)
    assert (run.status, run.claim_epoch, bodies) == ("running", 2, [])


@pytest.mark.filterwarnings("error")
def test_a_run_that_was_deleted_ends_it_quietly(conf: Any) -> None:
    conf(HEARTBEAT_SECONDS=0.05)
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        AgentRun.objects.filter(pk=segment.run.pk).delete()
        wait_until(lambda: segment.heartbeat.lost is not None, what="a refused beat")
        segment.step("read", lambda key: bodies.append("read"), effect=READ)

    from agentruns.tasks import execute
    from tests.factories import queued, registered

    with registered(agent) as name:
        execute(str(queued(name).uuid))
    assert bodies == []


def test_the_body_does_not_start_where_the_stamp_took_half_a_lease(
    conf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was paused between the two: only its clock is set ahead here."""
    from agentruns import execution as module
    from agentruns import hotpath
    from agentruns.clock import clock

    conf(LEASE_SECONDS=20)
    ahead = [0.0]
    monkeypatch.setattr(module, "clock", lambda: clock() + ahead[0])
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        stamp = hotpath.stamp

        def pause(*args: Any) -> Any:
            stamped = stamp(*args)
            ahead[0] = 10.5
            return stamped

        monkeypatch.setattr(hotpath, "stamp", pause)
        segment.step("write", lambda key: bodies.append("write"), effect=WRITE)

    run = executed(agent)
    assert (run.termination_reason, run.pending_effect) == ("interrupted_write", WRITE)
    assert bodies == []
    assert "did not start" in run.error_message
