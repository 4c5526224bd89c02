from __future__ import annotations

from uuid import UUID

from .exceptions import AgentRunError
from .models import AgentRun
from .reaper import sweep
from .runner import execute_claimed, owner_name
from .verification import verify

# What a queue's schedule calls to reap.
REAP = "agentruns.tasks.reap"


def execute(uuid: str) -> None:
    """Claim this run and execute it until it settles, parks or is taken back: what a queue calls.

    A message that is late, early, stale or a duplicate finds nothing to claim and does nothing. For
    a run that was interrupted in a write, the destination is asked whether it happened.
    """
    taken = AgentRun.objects.claim(UUID(uuid), owner_name("queue"))
    if taken is not None:
        execute_claimed(*taken)
    else:
        verify(UUID(uuid))


def enqueue(agent: str, request: object = None) -> str:
    """Enqueue a run: for a queue's own schedules. Returns its uuid."""
    from .api import enqueue as accept

    return str(accept(agent, request, requested_by="schedule").uuid)


def reap() -> dict[str, int]:
    """Sweep once: for a queue's own schedules. Returns how many runs met which end.

    Raises:
        AgentRunError: some runs could not be reaped; the others were.
    """
    report = sweep()
    if report.errors:
        failed = "; ".join(f"{run.uuid}: {run.error}" for run in report.errors)
        raise AgentRunError(f"{len(report.errors)} runs could not be reaped: {failed}")
    done = report.as_dict()
    return {name: done[name] for name in ("requeued", "dead_lettered", "cancelled", "woken")}
