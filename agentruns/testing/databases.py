"""Databases of the crash kit's own: it never works on the one that DATABASES names."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections
from django.test.utils import setup_databases, teardown_databases

# Processes die here, never the machine: nothing needs to reach the disk.
SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;",
        "timeout": 30,
    },
}

# A session that is told to end does so when its server comes to it.
END_SECONDS = 60


def use_sqlite() -> None:
    """Have this process use SQLite for every alias, whatever DATABASES says."""
    for alias in connections:
        connections[alias].close()
        connections.settings[alias].update(SQLITE)
        del connections[alias]


def lanes_allowed(wanted: int) -> int:
    """How many copies of the databases can be made; Django copies MySQL's with `mysqldump`."""
    vendors = {connections[alias].vendor for alias in connections}
    return 1 if "mysql" in vendors and shutil.which("mysqldump") is None else wanted


@contextmanager
def scratch_databases(lanes: int) -> Iterator[None]:
    """Create and migrate `crash_NAME` for every database, and a copy for each lane; drop them at the end.

    It is what Django's test runner does, under another name (SQLite: a file in a folder of its own),
    so that neither the project's database nor that of its tests is touched.
    """
    former = {alias: connections[alias].settings_dict["TEST"] for alias in connections}
    with (
        tempfile.TemporaryDirectory(prefix="agentruns-crash-") as folder,
        memory_put_aside(),
    ):
        for alias in connections:
            name = _scratch_name(connections[alias], Path(folder))
            connections[alias].settings_dict["TEST"] = {**former[alias], "NAME": name}
        created = setup_databases(verbosity=0, interactive=False)
        # SQLite's log is copied into the file when the last connection is closed.
        connections.close_all()
        try:
            for connection, _name, first in created:
                if first and lanes > 1:
                    end_sessions(connection)
                for lane in range(1, lanes + 1) if first and lanes > 1 else ():
                    connection.creation.clone_test_db(suffix=str(lane), verbosity=0)
            connections.close_all()
            yield
        finally:
            for connection, _name, first in created:
                if first:
                    end_sessions(connection)
            teardown_databases(created, verbosity=0, parallel=lanes)
            for alias, settings in former.items():
                connections[alias].settings_dict["TEST"] = settings


@contextmanager
def memory_put_aside() -> Iterator[None]:
    """Keep databases in memory, such as those of tests on SQLite, which would end with a connection."""
    kept: dict[str, Any] = {}
    for alias in connections:
        connection: Any = connections[alias]
        if connection.vendor == "sqlite" and connection.is_in_memory_db():
            kept[alias], connection.connection = connection.connection, None
    try:
        yield
    finally:
        for alias, open_connection in kept.items():
            connections[alias].close()
            connections[alias].connection = open_connection


def _scratch_name(connection: Any, folder: Path) -> str:
    if connection.vendor == "sqlite":
        return str(folder / f"{connection.alias}.sqlite3")
    return f"crash_{connection.settings_dict['NAME']}"[:60]


def enter_lane(lane: int, lanes: int) -> None:
    """Have this process, and those that it forks, work on this lane's copies."""
    connections.close_all()
    if lanes > 1:
        for alias in connections:
            creation = connections[alias].creation
            # In place, for the sake of threads that make connections of their own.
            connections[alias].settings_dict.update(creation.get_test_db_clone_settings(str(lane)))


def end_sessions(connection: Any) -> None:
    """End what processes have left in the server, or the databases can't be copied or dropped."""
    if connection.vendor != "postgresql":
        return
    name = connection.settings_dict["NAME"]
    deadline = time.monotonic() + END_SECONDS
    with connection._nodb_cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE (datname = %s OR starts_with(datname, %s)) AND pid <> pg_backend_pid()",
                [name, f"{name}_"],
            )
            if not cursor.fetchall():
                return
            time.sleep(0.05)
