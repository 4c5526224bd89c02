"""A worker that is paused past its lease, and goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import signal

import pytest
from django.db import connection

from agentruns.enums import RunStatus, StepOutcome
from agentruns.models import AgentRun, Step
from agentruns.testing.client import RecorderClient
from settings.database import MARIADB_OPTIONS
from tests.harness.fixtures import StartQCluster
from tests.harness.qcluster import QCluster
from tests.harness.runs import (
    deliver_again,
    describe,
    drain,
    history,
    reap,
    reread,
    wait_for_status,
    wait_out_lease,
)
from tests.project.models import LedgerEntry
from tests.servers.waiting import wait_until

from .support import (
    COMPLETED,
    LEASE_SECONDS,
    SHORT_LEASE,
    begin_held,
    bodies,
    epochs,
    interrupted_step,
    outcome,
    wait_out,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


@pytest.fixture
def qcluster(start_qcluster: StartQCluster) -> QCluster:
    return start_qcluster(agentruns=SHORT_LEASE)


def wait_for_evidence(run: AgentRun) -> Step:
    evidence = Step.objects.filter(run=run, key="write", late_at__isnull=False)
    step: Step | None = wait_until(evidence.first, what=lambda: f"late evidence: {describe(run)}")
    assert step is not None
    return step


def test_a_write_that_lands_after_its_run_was_dead_lettered_is_kept_as_evidence(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    qcluster = start_qcluster(workers=3, agentruns=SHORT_LEASE)
    agents = ("one_write", "async_write", "threaded_write")
    held = [begin_held(agent, "in_body:write", recorder) for agent in agents]
    for _run, worker in held:
        qcluster.kill_worker(worker, signal.SIGSTOP)
    for run, _worker in held:
        wait_out_lease(run)
    reap()
    for run, worker in held:
        assert interrupted_step(run).late_at is None
        os.kill(worker, signal.SIGCONT)
    recorder.release("in_body:write")
    for run, _worker in held:
        before = reread(run)
        step = wait_for_evidence(run)
        assert step.late_outcome == StepOutcome.RETURNED
        assert step.late_result is not None
        assert step.late_result.value == {"done": "write", "key": step.idempotency_key}
        assert interrupted_step(run).result is None
        assert (before.finished_at, before.claim_epoch) == (reread(run).finished_at, 1)
        assert history(run)[-1] == "late_evidence"
    for run, _worker in held:
        deliver_again(run)
        interrupted_step(run)
        assert bodies(run, "write", recorder) == 1
        assert bodies(run, "read_after", recorder) == 0


def test_a_write_that_fails_after_its_run_was_dead_lettered_is_kept_as_evidence(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run, worker = begin_held("one_write", "in_body:write", recorder, answer="broken")
    qcluster.kill_worker(worker, signal.SIGSTOP)
    wait_out_lease(run)
    reap()
    recorder.release("in_body:write")
    os.kill(worker, signal.SIGCONT)
    step = wait_for_evidence(run)
    assert "DestinationBroken" in step.late_error
    assert step.late_result is None
    interrupted_step(run)


def test_a_worker_paused_before_the_stamp_writes_nothing_into_a_run_that_it_lost(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    qcluster = start_qcluster(workers=2, agentruns=SHORT_LEASE)
    run, worker = begin_held("one_write", "before_stamp:write", recorder)
    qcluster.kill_worker(worker, signal.SIGSTOP)
    wait_out_lease(run)
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    settled = reread(run)
    recorder.release("before_stamp:write")
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: f"run {run.uuid} was lost" in qcluster.output(), what="the zombie's end")
    (body,) = recorder.bodies("write")
    assert body["pid"] != worker
    assert epochs(run, "write") == [2]
    assert vars(reread(run)) | {"_state": None} == vars(settled) | {"_state": None}


# The server ends a transaction in which nothing happens for less than a lease.
LIMITED = {
    "postgresql": {"options": "-c idle_in_transaction_session_timeout=8s"},
    "mysql": {"init_command": f"{MARIADB_OPTIONS['init_command']}, idle_transaction_timeout = 8"},
}


def test_a_worker_paused_while_it_holds_the_lock_of_its_run_loses_it(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """The reaper passes by locked rows: the server has to end the transaction of the paused one."""
    limit = json.dumps(LIMITED[connection.vendor])
    qcluster = start_qcluster(workers=2, agentruns=SHORT_LEASE, TEST_DATABASE_OPTIONS=limit)
    run, worker = begin_held("transactional_write", "in_record:write", recorder)
    qcluster.kill_worker(worker, signal.SIGSTOP)
    wait_out_lease(run)
    recorder.release("in_record:write")
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: f"run {run.uuid} was lost" in qcluster.output(), what="the zombie's end")
    assert LedgerEntry.objects.filter(run=run.uuid).count() == 1
    assert epochs(run, "write") == [2]


def test_a_worker_paused_between_stamp_and_body_does_not_start_the_body(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run, worker = begin_held("one_write", "after_stamp:write", recorder)
    qcluster.kill_worker(worker, signal.SIGSTOP)
    wait_out_lease(run)
    reap()
    interrupted_step(run)
    recorder.release("after_stamp:write")
    os.kill(worker, signal.SIGCONT)
    assert "the body did not start" in wait_for_evidence(run).late_error
    deliver_again(run)
    interrupted_step(run)
    assert recorder.count("write") == 0


def test_a_worker_paused_for_half_its_lease_before_the_body_ends_the_run_itself(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    """Nobody has reaped it: its own clock alone tells it that the write is not covered."""
    run, worker = begin_held("one_write", "after_stamp:write", recorder)
    qcluster.kill_worker(worker, signal.SIGSTOP)
    wait_out(run, 0.6 * LEASE_SECONDS)
    recorder.release("after_stamp:write")
    os.kill(worker, signal.SIGCONT)
    wait_for_status(run, RunStatus.FAILED)
    assert "the body did not start" in interrupted_step(run).error
    assert "lease_lost" not in history(run)
    assert recorder.count("write") == 0
