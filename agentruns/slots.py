"""Waking who is next, of agents that may have only so many runs at a time."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from . import registry
from .dispatch import wake_all
from .models import AgentRun
from .sqlthread import on_new_connections

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Slots:
    """How many runs of an agent are RUNNING (counted up to its limit), and how many may be."""

    running: int
    most: int


def slots_of(agent: str) -> Slots | None:
    """The slots of an agent; None where it is not known here, or has no limit."""
    most = registry.limits().get(agent)
    return None if most is None else Slots(AgentRun.objects.taken_slots(agent, most), most)


def wake_next(agent: str) -> None:
    """Wake who is next in this agent's line, if a slot is free: for whoever has left one.

    Never raises. If the process dies before this, the next sweep does it.
    """
    most = registry.limits().get(agent)
    if most is None:
        return
    try:
        # A worker's connection may have died while it was busy with the run.
        found = on_new_connections(
            lambda again: AgentRun.objects.take_in_line(agent, most, limit=1), RETRY_SECONDS
        )
        wake(found)
    except Exception:
        logger.exception("who is next of agent %s could not be woken; a sweep will do it", agent)


def pass_on(uuid: UUID) -> None:
    """Wake another run instead of this one, which was woken and has not taken a slot."""
    if registry.limits():
        for agent in AgentRun.objects.filter(uuid=uuid).values_list("agent", flat=True):
            wake_next(agent)


def wake(uuids: Collection[UUID]) -> int:
    """Send these wake-ups; if not all could be sent, all are in line again. Returns how many were."""
    sent = wake_all(uuids)
    if sent < len(uuids):
        AgentRun.objects.queued().filter(uuid__in=uuids).write_guarded(waits_for_slot=True)
    return sent
