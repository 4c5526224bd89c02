"""django-q2's own timeout: a SystemExit that a signal handler raises in the main thread."""

from __future__ import annotations

import pytest

from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.runs import (
    deliver_again,
    describe,
    drain,
    end_lease,
    history,
    reread,
    wait_settled,
)

from .support import COMPLETED, begin_held, bodies, interrupted_step, outcome, wait_dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

# Whole seconds; long enough for a busy machine to reach the write before it. The cluster ends a
# worker that outlives its timeout by three seconds, if `guard_cycle` adds up to them exactly.
TIMEOUT = {"timeout": 10, "retry": 90, "guard_cycle": 0.125}
LONG_LEASE = {"LEASE_SECONDS": 300, "MAX_STEP_SECONDS": 600}


def test_a_timeout_inside_a_write_dead_letters_the_run_at_once(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(workers=2, q_cluster=TIMEOUT, agentruns=LONG_LEASE)
    agents = ("one_write", "async_write")
    held = [begin_held(agent, "in_body:write", recorder) for agent in agents]
    for run, worker in held:
        wait_settled(run)
        assert "TimeoutException" in interrupted_step(run).error
        wait_dead(worker)
    recorder.release("in_body:write")
    for run, _worker in held:
        deliver_again(run)
        interrupted_step(run)
        assert bodies(run, "write", recorder) == 1


def test_a_timeout_inside_a_write_in_a_thread_is_dead_lettered_by_the_reaper(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """The thread can't be ended: the process must end, without a word about the write."""
    start_qcluster(q_cluster=TIMEOUT, agentruns={"END_GRACE_SECONDS": 0.2})
    run, worker = begin_held("threaded_write", "in_body:write", recorder)
    wait_dead(worker)
    end_lease(run)
    drain(run)
    interrupted_step(run)
    recorder.release("in_body:write")
    deliver_again(run)
    interrupted_step(run)
    assert bodies(run, "write", recorder) == 1


def test_a_timeout_outside_a_write_costs_a_retry_and_repeats_no_write(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(q_cluster=TIMEOUT, agentruns=LONG_LEASE)
    run, _worker = begin_held("one_write", "in_body:read_after", recorder)
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert history(run) == ["queued", "claimed", "requeued", "claimed", "completed"]
    assert reread(run).requeue_count == 1
    assert recorder.count("write") == 1
