from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from . import hotrun, registry, slots
from .exceptions import AgentRunError
from .reaper import sweep
from .retention import purge as purge_runs
from .runner import execute_claimed, owner_name
from .verification import verify

# What a queue's schedule calls to reap.
REAP = "agentruns.tasks.reap"
# What a queue's schedule calls to delete old runs.
PURGE = "agentruns.tasks.purge"


def execute(uuid: str) -> None:
    """Claim this run and execute it until it settles, parks or is taken back: what a queue calls.

    A message that is late, early, stale or a duplicate finds nothing to claim and does nothing. A run
    of an agent or a version that this process does not have stays queued for one that has it, and one
    of an agent that has as many runs as it may have stays in line. For a run that was interrupted in a
    write, the destination is asked whether it happened.
    """
    served, limits = registry.served(), registry.limits()
    taken = hotrun.claim(UUID(uuid), owner_name("queue"), served, limits)
    if taken is not None:
        execute_claimed(*taken)
    else:
        verify(UUID(uuid))
        slots.pass_on(UUID(uuid))


def enqueue(agent: str, request: object = None) -> str:
    """Enqueue a run: for a queue's own schedules. Returns its uuid."""
    from .api import enqueue as accept

    return str(accept(agent, request, requested_by="schedule").uuid)


def reap() -> dict[str, int]:
    """Sweep once: for a queue's own schedules. Returns how many runs met which end.

    Raises:
        AgentRunError: some runs could not be reaped, or not be woken; the others were.
    """
    report = sweep()
    if report.failures:
        errors = "; ".join(f"{run.uuid}: {run.error}" for run in report.errors)
        raise AgentRunError(" | ".join(filter(None, (report.failures, errors))))
    done = report.as_dict()
    return {name: done[name] for name in ("requeued", "dead_lettered", "cancelled", "woken")}


def purge(
    *, settled_days: float | None = None, unfinished_days: float | None = None
) -> dict[str, Any]:
    """Delete old runs, as `purge_agent_runs` does: for a queue's own schedules."""
    settled = None if settled_days is None else timedelta(days=settled_days)
    unfinished = None if unfinished_days is None else timedelta(days=unfinished_days)
    return purge_runs(settled=settled, unfinished=unfinished).as_dict()
