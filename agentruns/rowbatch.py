from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from django.db import DataError, InterfaceError, OperationalError, connections, transaction

from .conf import conf
from .models import AgentRun
from .sqlthread import close_connection

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Named(Protocol):
    @property
    def uuid(self) -> UUID | str: ...
    @property
    def agent(self) -> str: ...


def decide_each(
    pks: list[int],
    read: Callable[[list[int]], Iterable[AgentRun]],
    decide: Callable[[AgentRun], T],
) -> list[tuple[AgentRun | int, T | Exception]]:
    """Decide runs in one transaction; one by one if that is lost.

    A run for which it fails is given back with the error and stops no other; of a row that can't
    even be read, only its primary key is known.

    Args:
        pks: The runs' primary keys.
        read: Gives those of these runs that are to be decided, locked or not.
        decide: Writes what becomes of a run, under a lock, and returns it.

    Raises:
        OperationalError: if the database has gone.
    """
    try:
        with transaction.atomic(using=conf.DATABASE):
            return [_decide(run, decide) for run in read(pks)]
    except (OperationalError, InterfaceError, DataError) as error:
        if not isinstance(error, DataError):
            close_connection()  # it may be that which is broken
            connections[conf.DATABASE].ensure_connection()
        if len(pks) > 1:
            return [end for pk in pks for end in decide_each([pk], read, decide)]
        logger.exception("nothing could be decided about the run with the primary key %s", pks[0])
        return [(pks[0], error)]


def _decide(run: AgentRun, decide: Callable[[AgentRun], T]) -> tuple[AgentRun, T | Exception]:
    try:
        with transaction.atomic(using=conf.DATABASE):
            return run, decide(run)
    except Exception as error:
        if transaction.get_rollback(using=conf.DATABASE):
            # A deadlock on MariaDB, or a lost connection: the batch is lost, not only this run.
            raise
        logger.exception("nothing could be decided about run %s", run.uuid)
        return run, error


def name_of(run: Named | int) -> tuple[str, str]:
    """Return the uuid and the agent that a report gives for a run, or its primary key alone."""
    return (f"pk {run}", "") if isinstance(run, int) else (str(run.uuid), run.agent)
