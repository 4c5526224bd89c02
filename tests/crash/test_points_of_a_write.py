from __future__ import annotations

import pytest

from agentruns.enums import RunStatus, StepState, TerminationReason, ToolEffect
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from tests.harness.qcluster import QCluster
from tests.harness.runs import (
    deliver_again,
    drain,
    end_lease,
    enqueued,
    reap,
    reread,
    wait_settled,
)

pytestmark = pytest.mark.django_db(transaction=True)


def kill_at(point: str, qcluster: QCluster, recorder: RecorderClient) -> AgentRun:
    """Kill the worker itself at this point of a run's write; return the run, its lease ended."""
    recorder.arm(point)
    run = enqueued("one_write", {})
    qcluster.kill_worker(recorder.wait_reached(point))
    assert reread(run).status == RunStatus.RUNNING
    end_lease(run)
    return run


def test_a_run_killed_before_the_stamp_is_retried_and_completes(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run = kill_at("before_stamp:write", qcluster, recorder)
    assert recorder.count("write") == 0
    reap()
    assert drain(run).status == RunStatus.COMPLETED
    assert reread(run).requeue_count == 1
    assert recorder.count("write") == 1
    assert recorder.count("read_before") == 1


@pytest.mark.parametrize(
    ("point", "bodies"),
    [("after_stamp:write", 0), ("in_body:write", 1), ("before_record:write", 1)],
)
def test_a_run_killed_between_stamp_and_record_is_dead_lettered_with_its_fence(
    point: str, bodies: int, qcluster: QCluster, recorder: RecorderClient
) -> None:
    run = kill_at(point, qcluster, recorder)
    assert recorder.count("write") == bodies
    reap()
    deliver_again(run)
    row = drain(run)
    assert (row.status, row.termination_reason) == (
        RunStatus.FAILED,
        TerminationReason.INTERRUPTED_WRITE,
    )
    assert row.pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE
    assert row.pending_step is not None
    assert row.pending_step.state == StepState.UNCERTAIN
    assert recorder.count("write") == bodies


def test_a_run_killed_after_the_record_completes_without_a_second_body(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run = kill_at("after_record:write", qcluster, recorder)
    assert reread(run).pending_effect == ""
    reap()
    assert drain(run).status == RunStatus.COMPLETED
    assert recorder.count("write") == 1
    assert recorder.count("read_before") == 1


def test_a_run_that_nobody_disturbs_completes(qcluster: QCluster, recorder: RecorderClient) -> None:
    """The other tests of this module prove nothing if this one fails."""
    run = enqueued("one_write", {})
    row = wait_settled(run)
    assert row.status == RunStatus.COMPLETED, row.error_message
    assert [body["name"] for body in recorder.bodies()] == ["read_before", "write", "read_after"]
