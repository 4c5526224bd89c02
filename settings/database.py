from __future__ import annotations

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


def database(url: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one entry of DATABASES for a database URL, with the options that its engine needs."""
    # A connection is kept between steps and checked before each task: opening one for each step
    # costs several times as much as everything else that a step does.
    entry: dict[str, Any] = dict(
        dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True)
    )
    engine_options = SQLITE_OPTIONS if entry["ENGINE"].endswith("sqlite3") else {}
    entry["OPTIONS"] = {**engine_options, **entry.get("OPTIONS", {}), **(options or {})}
    return entry
