from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from django.db import transaction
from django.utils.module_loading import import_string

from ..conf import conf

logger = logging.getLogger(__name__)

# What a queue calls, with a run's uuid as a string.
TASK = "agentruns.tasks.execute"


class Dispatcher(Protocol):
    """Makes a due run known to workers. The message is only a wake-up call: the row is the state."""

    def wake(self, uuid: UUID) -> None:
        """Have a worker call `agentruns.tasks.execute(str(uuid))` soon. May raise; nothing is lost."""


class BulkDispatcher(Dispatcher, Protocol):
    """A dispatcher that sends many messages at the price of a few."""

    def wake_many(self, uuids: Sequence[UUID]) -> None:
        """As `wake()` for each. If it raises, none counts as sent, and a later sweep sends them again."""


def dispatcher() -> Dispatcher:
    """The configured dispatcher."""
    made: Dispatcher = import_string(conf.DISPATCHER)()
    return made


def wake_after_commit(uuid: UUID) -> None:
    """Send the wake-up when the current transaction has committed, or now without one."""
    transaction.on_commit(lambda: wake_all([uuid]), using=conf.DATABASE, robust=True)


def wake_all(uuids: Iterable[UUID]) -> int:
    """Send wake-ups; one that can't be sent is logged, and sent again by a later sweep.

    Together, where the dispatcher can. Returns how many were sent.
    """
    sender, all_of_them = dispatcher(), list(uuids)
    wake_many = getattr(sender, "wake_many", None)
    if wake_many is None or len(all_of_them) < 2:
        return sum(_sent(sender, uuid) for uuid in all_of_them)
    try:
        wake_many(all_of_them)
    except Exception:
        logger.exception(
            "%s wake-ups could not be sent; a sweep will repeat them", len(all_of_them)
        )
        return 0
    return len(all_of_them)


def _sent(sender: Dispatcher, uuid: UUID) -> bool:
    try:
        sender.wake(uuid)
    except Exception:
        logger.exception("the wake-up of run %s could not be sent; a sweep will repeat it", uuid)
        return False
    return True
