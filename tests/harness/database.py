"""What tests ask of the database's server itself, in the dialect of each."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connection

from tests.servers.waiting import wait_until

DIALECT: dict[str, dict[str, str]] = {
    "postgresql": {
        "own": "SELECT pg_backend_pid()",
        "others": "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
        "end": "SELECT pg_terminate_backend(%s)",
    },
    "mysql": {
        "own": "SELECT connection_id()",
        "others": "SELECT id FROM information_schema.processlist"
        " WHERE db = %s AND id <> connection_id()",
        "end": "KILL %s",
    },
}


def said(what: str) -> str:
    return DIALECT[connection.vendor][what]


def own_backend() -> int | None:
    """The server's number for this thread's connection; None on SQLite, which has no server."""
    if connection.vendor == "sqlite":
        return None
    with connection.cursor() as cursor:
        cursor.execute(said("own"))
        number: int = cursor.fetchone()[0]
    return number


def waits_for_a_lock(backend: int | None) -> bool:
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            # The table of transactions shows a cached state to whoever looks often.
            cursor.execute("SHOW ENGINE INNODB STATUS")
            waiting = rf"^LOCK WAIT .*\nMariaDB thread id {backend},"
            return re.search(waiting, cursor.fetchone()[2], re.MULTILINE) is not None
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
            [backend],
        )
        return bool(cursor.fetchone()[0])


def end_backend(cursor: Any, backend: int | None) -> None:
    with suppress(DatabaseError):  # it has ended by itself
        cursor.execute(said("end"), [backend])


def end_other_connections(name: str = "") -> int:
    """Have the server end every connection to this database but ours; return how many there were."""
    with connection._nodb_cursor() if name else connection.cursor() as cursor:
        cursor.execute(said("others"), [name or connection.settings_dict["NAME"]])
        others = [row[0] for row in cursor.fetchall()]
        for backend in others:
            end_backend(cursor, backend)
    return len(others)


def be_alone(name: str) -> None:
    """End every other connection to this database, and wait until it is gone: it may be dropped then."""
    wait_until(lambda: not end_other_connections(name), what=f"the end of connections to {name}")


def end_own_connection() -> None:
    """Have the server end this thread's connection, and raise what the client makes of that."""
    with connection.cursor() as cursor:
        cursor.execute(said("end"), [own_backend()])
        cursor.execute("SELECT 1")
