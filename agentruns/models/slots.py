from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from django.db import models

from ..enums import RunStatus
from ..guard import lock

if TYPE_CHECKING:
    from .run import AgentRun  # noqa: F401 (named in a string)

S = TypeVar("S", bound="SlotQuerySet")


class SlotQuerySet(models.QuerySet["AgentRun"]):
    """How many runs of an agent there may be at a time, and who is next."""

    def taken_slots(self, agent: str, most: int) -> int:
        """How many runs of this agent are RUNNING; counted up to `most`."""
        return self.filter(status=RunStatus.RUNNING, agent=agent)[:most].count()

    def has_free_slot(self, agent: str, most: int) -> bool:
        return self.taken_slots(agent, most) < most

    def hold_free_slot(self, agent: str, most: int) -> bool:
        """Whether there is a free slot; nobody else takes it before this transaction ends.

        Without a lock first, so that those who come in vain don't stand in line for it.
        """
        if not self.has_free_slot(agent, most):
            return False
        lock_slots(agent)
        return self.has_free_slot(agent, most)

    def in_line(self: S) -> S:
        """QUEUED runs that a worker left because their agent had no free slot."""
        return self.filter(status=RunStatus.QUEUED, waits_for_slot=True)


def lock_slots(agent: str) -> None:
    """Have the claims of this agent's runs come one after the other, until the transaction's end."""
    from .limit import AgentLimit

    row = lock(AgentLimit.objects.filter(agent=agent))
    if not row:
        make_slots(agent)
        row.get(agent=agent)


def make_slots(agent: str) -> None:
    """Have the row that the claims of this agent's runs lock.

    Before a claim's transaction: in several that have locked something, it could be their deadlock.
    """
    from .limit import AgentLimit

    if not AgentLimit.objects.filter(agent=agent).exists():
        AgentLimit.objects.bulk_create([AgentLimit(agent=agent)], ignore_conflicts=True)
