from __future__ import annotations

import importlib.util
from typing import Any

import dj_database_url

# What makes SQLite keep the promises of this project, in the order of the options below:
# writers wait for each other instead of failing when a read turns into a write, so that a guard
# that was judged still holds when its row is written; readers don't wait for writers; a committed
# fence survives a power cut (NORMAL does not flush each commit in WAL mode); a writer waits for
# this many seconds before it gives up with 'database is locked'.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
    "timeout": 30,
}

# A process that is paused inside a transaction (a stopped container, a suspended machine) loses its
# locks after this time; otherwise the reaper could not take back the run that it holds.
POSTGRES_OPTIONS = {"options": "-c idle_in_transaction_session_timeout=60s"}

# What makes MariaDB keep them: a statement that waited for a lock sees what was committed meanwhile,
# where the server's default (REPEATABLE READ) goes on with what was there before, and locks gaps
# besides; any text can be stored; the clock that judges leases is UTC, which knows no summer time;
# what does not fit a column is refused instead of cut; who waits for a row gives up well within a
# lease, and tries again on a new connection; a process that is paused inside a transaction loses its
# locks. That matched rows are counted instead of changed ones is Django's doing.
MARIADB_OPTIONS = {
    "isolation_level": "read committed",
    "charset": "utf8mb4",
    "init_command": "SET time_zone = '+00:00', "
    "sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), "
    "innodb_lock_wait_timeout = 20, "
    "idle_transaction_timeout = 60",
}

ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite3": SQLITE_OPTIONS,
    "postgresql": POSTGRES_OPTIONS,
    "mysql": MARIADB_OPTIONS,
}


def database(url: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one entry of DATABASES for a database URL, with the options that its engine needs."""
    # A connection is kept between steps and checked before each task: opening one for each step
    # costs several times as much as everything else that a step does.
    entry: dict[str, Any] = dict(
        dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True)
    )
    vendor = entry["ENGINE"].rpartition(".")[2]
    if vendor == "mysql":
        provide_driver()
    engine_options = ENGINE_OPTIONS.get(vendor, {})
    entry["OPTIONS"] = {**engine_options, **entry.get("OPTIONS", {}), **(options or {})}
    return entry


def provide_driver() -> None:
    """Have PyMySQL, which needs no compiler, stand in for mysqlclient where that is not installed."""
    if importlib.util.find_spec("MySQLdb") is None:
        import pymysql

        pymysql.install_as_MySQLdb()
