"""SIGTERM: what becomes of a run whose process is asked to stop."""

from __future__ import annotations

import os
import signal

import pytest

from agentruns.enums import RunStatus, StepState, ToolEffect
from agentruns.models import AgentRun, Step
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.manage import run_manage
from tests.harness.qcluster import QCluster
from tests.harness.runs import (
    describe,
    drain,
    end_lease,
    history,
    reread,
    wait_for_status,
    wait_settled,
)
from tests.servers.cluster import is_alive
from tests.servers.waiting import PATIENCE, wait_until

from .support import COMPLETED, begin_held, bodies, epochs, outcome, wait_dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

# Far longer than any of these tests: nothing here goes on because a lease ran out.
LONG_LEASE = {"LEASE_SECONDS": 300, "MAX_STEP_SECONDS": 600, "WAKE_AGAIN_SECONDS": 300}


def assert_given_back_and_completed(run: AgentRun, recorder: RecorderClient) -> None:
    """Assert that the run went on in another worker at once, and spent no retry."""
    wait_settled(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert history(run) == ["queued", "claimed", "given_back", "claimed", "completed"]
    assert reread(run).requeue_count == 0
    assert bodies(run, "write", recorder) == 1


def test_a_worker_asked_to_stop_outside_a_write_gives_its_run_back_at_once(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    qcluster = start_qcluster(workers=2, agentruns=LONG_LEASE)
    agents = ("one_write", "async_write")
    held = [begin_held(agent, "in_body:read_before", recorder) for agent in agents]
    for _run, worker in held:
        qcluster.kill_worker(worker, signal.SIGTERM)
        wait_dead(worker)
    for run, _worker in held:
        assert_given_back_and_completed(run, recorder)


def test_a_worker_asked_to_stop_inside_a_write_finishes_and_records_it_first(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    qcluster = start_qcluster(workers=3, agentruns=LONG_LEASE)
    agents = ("one_write", "async_write", "threaded_write")
    held = [begin_held(agent, "in_body:write", recorder) for agent in agents]
    for _run, worker in held:
        qcluster.kill_worker(worker, signal.SIGTERM)
    recorder.arm("before_record:write", times=len(held))
    recorder.release("in_body:write")
    recorder.wait_reached("before_record:write", arrival=len(held))
    for run, worker in held:
        assert is_alive(worker)
        assert reread(run).status == RunStatus.RUNNING
        assert reread(run).pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE
    recorder.release("before_record:write")
    for run, worker in held:
        wait_dead(worker)
        step = Step.objects.get(run=run, key="write")
        assert (step.state, step.epoch) == (StepState.RECORDED, 1)
        assert_given_back_and_completed(run, recorder)
        assert epochs(run, "read_after") == [2]


def test_a_worker_asked_to_stop_while_a_thread_reads_leaves_the_run_to_the_reaper(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """Nothing can end a thread: the process ends instead, and the lease with it."""
    qcluster = start_qcluster(agentruns={"END_GRACE_SECONDS": 0.2})
    run, worker = begin_held("threaded_write", "in_body:read_before", recorder)
    qcluster.kill_worker(worker, signal.SIGTERM)
    wait_dead(worker)
    end_lease(run)
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert reread(run).requeue_count == 1
    assert recorder.count("write") == 1


def test_a_cluster_that_is_stopped_lets_its_worker_finish_the_run(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run, _worker = begin_held("one_write", "in_body:write", recorder)
    qcluster.ask_to_stop()
    wait_until(lambda: "stopping cluster processes" in qcluster.output(), what="the order to stop")
    recorder.release("in_body:write")
    qcluster.process.wait(timeout=PATIENCE)
    assert outcome(run) == COMPLETED, describe(run)
    assert recorder.count("write") == 1


def test_a_service_manager_that_asks_every_process_to_stop_costs_no_run_and_no_retry(
    start_qcluster: StartQCluster, recorder: RecorderClient, recorder_url: str
) -> None:
    """As systemd does: SIGTERM to the whole group. The run goes on in another cluster."""
    qcluster = start_qcluster(agentruns=LONG_LEASE)
    run, worker = begin_held("one_write", "in_body:write", recorder)
    os.killpg(qcluster.process.pid, signal.SIGTERM)
    recorder.release("in_body:write")
    wait_dead(worker)
    row = wait_for_status(run, RunStatus.QUEUED)
    assert row.requeue_count == 0
    assert Step.objects.get(run=run, key="write").state == StepState.RECORDED
    go_on = f"from agentruns.tasks import execute; execute('{run.uuid}')"
    run_manage("shell", "-c", go_on, recorder_url=recorder_url).check()
    assert outcome(run) == COMPLETED, describe(run)
    assert recorder.count("write") == 1
