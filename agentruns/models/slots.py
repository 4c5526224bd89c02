from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from django.db import OperationalError, connections, models, transaction

from ..enums import RunStatus
from ..exceptions import SlotsHeld
from ..guard import lock

if TYPE_CHECKING:
    from .run import AgentRun  # noqa: F401 (named in a string)

S = TypeVar("S", bound="SlotQuerySet")

# How long a claim waits for another one of its agent, whose worker may have been paused in it.
LOCK_SECONDS = 5


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
    """Have the claims of this agent's runs come one after the other, until the transaction's end.

    Raises:
        SlotsHeld: another claim has held them for LOCK_SECONDS (on MariaDB, for
            `innodb_lock_wait_timeout`); the transaction goes on.
    """
    from .limit import AgentLimit

    row = lock(AgentLimit.objects.filter(agent=agent))
    try:
        with transaction.atomic(using=row.db):
            _wait_no_longer(row.db)
            if not row:
                make_slots(agent)
                row.get(agent=agent)
    except OperationalError as error:
        if transaction.get_rollback(using=row.db):
            raise
        raise SlotsHeld(agent) from error


def _wait_no_longer(alias: str) -> None:
    connection = connections[alias]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")


def make_slots(agent: str) -> None:
    """Have the row that the claims of this agent's runs lock.

    Before a claim's transaction: in several that have locked something, it could be their deadlock.
    """
    from .limit import AgentLimit

    if not AgentLimit.objects.filter(agent=agent).exists():
        AgentLimit.objects.bulk_create([AgentLimit(agent=agent)], ignore_conflicts=True)
