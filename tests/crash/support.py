"""What the crash tests have in common."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from agentruns.enums import RunStatus, StepState, TerminationReason, ToolEffect
from agentruns.models import AgentRun, Step
from agentruns.models.step import idempotency_key
from agentruns.testing.client import RecorderClient
from tests.harness.qcluster import QCluster
from tests.harness.runs import describe, end_lease, enqueued, reread
from tests.servers.cluster import is_alive
from tests.servers.waiting import PATIENCE, wait_until

# Of workers that a test pauses past their lease, or has renew it for longer: as short as can be waited
# for, and long enough that a busy machine does not pause them past it.
LEASE_SECONDS = 10.0
SHORT_LEASE = {"LEASE_SECONDS": LEASE_SECONDS, "HEARTBEAT_SECONDS": 1.0}


def begin(agent: str, request: Any = None) -> AgentRun:
    return enqueued(agent, request or {})


def begin_held(
    agent: str, point: str, recorder: RecorderClient, *, answer: Any = None
) -> tuple[AgentRun, int]:
    """Enqueue a run; return it when a worker waits at this point of it, and that worker's pid.

    Those whom earlier calls hold there stay held, until the point is released for all of them.
    """
    recorder.arm(point, answer=answer)
    arrivals = recorder.arrivals(point)
    run = begin(agent)
    return run, recorder.wait_reached(point, arrival=arrivals + 1)


def bodies(run: AgentRun, name: str, recorder: RecorderClient) -> int:
    """Return how often the body of this run's step has started."""
    key = idempotency_key(run.uuid, name)
    return [body["key"] for body in recorder.bodies(name)].count(key)


def kill_held(agent: str, point: str, qcluster: QCluster, recorder: RecorderClient) -> AgentRun:
    """Enqueue a run, kill the worker that executes it when it is at this point, and end its lease."""
    run, worker = begin_held(agent, point, recorder)
    qcluster.kill_worker(worker)
    assert reread(run).status == RunStatus.RUNNING
    end_lease(run)
    return run


def wait_out(run: AgentRun, seconds: float, timeout: float = PATIENCE) -> None:
    """Wait until so many seconds of the run's lease have passed, by the database's clock."""
    left = timedelta(seconds=LEASE_SECONDS - seconds)
    passed = AgentRun.objects.filter(pk=run.pk, lease_expires_at__lt=Now() + left)
    wait_until(passed.exists, timeout, lambda: f"{seconds} s of the lease: {describe(run)}")


def wait_dead(pid: int, timeout: float = PATIENCE) -> None:
    wait_until(lambda: not is_alive(pid), timeout, f"the end of worker {pid}")


def outcome(run: AgentRun) -> tuple[str, str]:
    row = reread(run)
    return row.status, row.termination_reason


COMPLETED = (RunStatus.COMPLETED, TerminationReason.COMPLETED)
INTERRUPTED = (RunStatus.FAILED, TerminationReason.INTERRUPTED_WRITE)
EXHAUSTED = (RunStatus.FAILED, TerminationReason.RETRIES_EXHAUSTED)
NOT_RETRYABLE = (RunStatus.FAILED, TerminationReason.NOT_RETRYABLE)


def interrupted_step(run: AgentRun) -> Step:
    """Assert that the run is dead-lettered with its fence standing; return the uncertain attempt."""
    row = reread(run)
    assert outcome(run) == INTERRUPTED, describe(run)
    assert row.pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE
    assert row.pending_step is not None
    assert row.pending_step.state == StepState.UNCERTAIN
    return row.pending_step


def epochs(run: AgentRun, key: str) -> list[int]:
    """Return the epochs of every attempt at this step, in their order."""
    return list(
        Step.objects.filter(run=run, key=key).order_by("pk").values_list("epoch", flat=True)
    )
