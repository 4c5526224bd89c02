from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from django.db import (
    DatabaseError,
    DataError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)

from .clock import clock
from .conf import conf
from .stopiteration import without_stop_iteration

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A broken connection, a deadlock, a serialization failure, a lock timeout, 'database is locked', a
# server that is read-only after a failover: another connection may do.
WORTH_ANOTHER_CONNECTION = (OperationalError, InterfaceError, InternalError)
# Also what looks like a programming error: a pooler may have lost a prepared statement.
ANY_FAILURE = (DatabaseError, InterfaceError)


def is_failure_of_the_database(error: BaseException) -> bool:
    """Whether the database failed, and did not only refuse the value that it was given."""
    return isinstance(error, ANY_FAILURE) and not isinstance(error, DataError)


class SqlThread:
    """The one thread and connection on which a segment speaks to the database.

    Signals reach only the main thread, so that no timeout or termination interrupts a statement.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentruns-sql")

    def submit(self, function: Callable[[], T]) -> Future[T]:
        return self._pool.submit(without_stop_iteration(function))

    def close(self) -> None:
        """Close the connection and end the thread, after what was submitted before."""
        self._pool.submit(close_connection)
        self._pool.shutdown(wait=True)


def close_connection() -> None:
    """Close this thread's connection to the runs' database, whatever its state."""
    connections[conf.DATABASE].close()


def on_new_connections(
    function: Callable[[bool], T],
    seconds: float,
    failures: tuple[type[Exception], ...] = WORTH_ANOTHER_CONNECTION,
) -> T:
    """Call `function(again)`; after one of these failures call it on a new connection.

    `again` is true for every call but the first: what the former one sent may have been committed.
    Gives up, with the database's error, when `seconds` have passed.
    """
    deadline = clock() + seconds
    pause = 0.05
    again = False
    while True:
        try:
            return function(again)
        except failures as error:
            if not is_failure_of_the_database(error) or clock() >= deadline:
                raise
            logger.warning("the database failed (%s); trying again", type(error).__name__)
            close_connection()
        again = True
        threading.Event().wait(pause)
        pause = min(pause * 2, 2.0)
