from __future__ import annotations

from uuid import UUID

from .models import AgentRun
from .runner import execute_claimed, owner_name


def execute(uuid: str) -> None:
    """Claim this run and execute it until it settles, parks or is taken back: what a queue calls.

    A message that is late, early, stale or a duplicate finds nothing to claim and does nothing.
    """
    taken = AgentRun.objects.claim(UUID(uuid), owner_name("queue"))
    if taken is not None:
        execute_claimed(*taken)


def enqueue(agent: str, request: object = None) -> str:
    """Enqueue a run: for a queue's own schedules. Returns its uuid."""
    from .api import enqueue as accept

    return str(accept(agent, request, requested_by="schedule").uuid)
