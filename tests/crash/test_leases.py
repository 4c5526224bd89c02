"""A live worker keeps its run, however long a body takes and whatever its clock says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentruns.enums import RunStatus
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from tests.harness.database import end_other_connections
from tests.harness.fixtures import StartQCluster
from tests.harness.processes import Reaper
from tests.harness.qcluster import QCluster
from tests.harness.runs import describe, history, reread, wait_settled
from tests.servers.waiting import wait_until

from .support import (
    COMPLETED,
    LEASE_SECONDS,
    SHORT_LEASE,
    begin,
    begin_held,
    bodies,
    interrupted_step,
    outcome,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def wait_for_renewals(run: AgentRun) -> None:
    """Wait until the lease was renewed for longer than a whole lease, from now on."""
    expires_at = reread(run).lease_expires_at
    assert expires_at is not None
    later = expires_at + timedelta(seconds=1.25 * LEASE_SECONDS)
    renewed = AgentRun.objects.filter(pk=run.pk, lease_expires_at__gt=later)
    wait_until(renewed.exists, what=lambda: f"renewals for more than a lease: {describe(run)}")


@pytest.mark.parametrize("offset", [600, -600], ids=["ahead", "behind"])
def test_a_live_worker_keeps_its_run_and_a_dead_one_loses_it_whatever_its_clock_says(
    offset: float, start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """The worker's clock is apart from the clock of the reaper, of this process and the database."""
    qcluster = start_qcluster(workers=2, clock_offset=offset, agentruns=SHORT_LEASE)
    writing, writer = begin_held("one_write", "in_body:write", recorder)
    reading, reader = begin_held("one_write", "in_body:read_before", recorder)
    with Reaper():
        wait_for_renewals(writing)
        wait_for_renewals(reading)
        for run in (writing, reading):
            assert (reread(run).status, reread(run).claim_epoch) == (RunStatus.RUNNING, 1)
        qcluster.kill_worker(writer)
        qcluster.kill_worker(reader)
        wait_settled(writing)
        wait_settled(reading)
    interrupted_step(writing)
    assert outcome(reading) == COMPLETED, describe(reading)
    assert reread(reading).requeue_count == 1
    for run in (writing, reading):
        assert history(run).count("lease_lost") == 1
        assert bodies(run, "write", recorder) == 1


def test_a_worker_whose_connections_end_in_a_write_keeps_its_lease_and_records_on_new_ones(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(agentruns=SHORT_LEASE)
    run, _worker = begin_held("one_write", "in_body:write", recorder)
    assert end_other_connections() >= 2
    with Reaper():
        wait_for_renewals(run)
        recorder.release("in_body:write")
        wait_settled(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert history(run) == ["queued", "claimed", "completed"]
    assert recorder.count("write") == 1


def test_a_connection_lost_at_a_stamp_or_a_record_costs_neither_the_run_nor_a_second_body(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    """Before, the statements fail; after, they were committed and the answer was lost."""
    for point in ("before_stamp", "after_stamp", "before_record", "after_record"):
        recorder.arm(f"{point}:write", block=False, answer="lose_connection")
        run = begin("one_write")
        wait_settled(run)
        assert outcome(run) == COMPLETED, f"{point}: {describe(run)}"
        assert history(run) == ["queued", "claimed", "completed"]
        assert recorder.arrivals(f"{point}:write") == 1
        assert bodies(run, "write", recorder) == 1, point
