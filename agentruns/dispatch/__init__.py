from __future__ import annotations

import logging
from collections.abc import Iterable
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


def dispatcher() -> Dispatcher:
    """The configured dispatcher."""
    made: Dispatcher = import_string(conf.DISPATCHER)()
    return made


def wake_after_commit(uuid: UUID) -> None:
    """Send the wake-up when the current transaction has committed, or now without one."""
    transaction.on_commit(lambda: wake_all([uuid]), using=conf.DATABASE, robust=True)


def wake_all(uuids: Iterable[UUID]) -> int:
    """Send wake-ups; one that can't be sent is logged, and sent again by a later sweep.

    Returns how many were sent.
    """
    sender, sent = dispatcher(), 0
    for uuid in uuids:
        try:
            sender.wake(uuid)
            sent += 1
        except Exception:
            logger.exception(
                "the wake-up of run %s could not be sent; a sweep will repeat it", uuid
            )
    return sent
