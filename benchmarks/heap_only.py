"""The share of heap-only updates, as PostgreSQL counts them: those that touch no index."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connections

from agentruns import hotpath, hotrun
from agentruns.enums import ToolEffect

from .database import clear, connect
from .queue import OUTPUT, queued
from .steps import OWNER, RETURNED, calls, running

COUNTED = """
    SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'agentruns_agentrun'
"""
RUNS, TIMES = 20, 50
UNTIL_SECONDS = 30

Act = Callable[[], object]


def heap_only() -> list[dict[str, Any]]:
    found = []
    with connect() as connection:
        clear(connection)
        for name, prepare in ACTS.items():
            act = prepare()
            before = counted(connection, 0)
            act()
            updates, hot = counted(connection, before[0] + RUNS * TIMES)
            found.append(
                {
                    "benchmark": "heap_only",
                    "heap_only": name,
                    "updates": updates - before[0],
                    "share": round((hot - before[1]) / (updates - before[0]), 3),
                }
            )
        clear(connection)
    return found


def counted(connection: psycopg.Connection, least: int) -> tuple[int, int]:
    """What is counted when all backends have told: they do at the latest when they end."""
    connections.close_all()
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    deadline = time.monotonic() + UNTIL_SECONDS
    while time.monotonic() < deadline:
        (busy,) = connection.execute(f"{others} pg_backend_pid()").fetchone() or (1,)
        updates, hot = connection.execute(COUNTED).fetchone() or (0, 0)
        if updates >= least and not busy:
            return updates, hot
        time.sleep(0.05)
    raise TimeoutError(f"{updates} updates are counted, not {least}; pid {os.getpid()}")


def on_running(act: Callable[..., object]) -> Callable[[], Act]:
    """Do it in turn to some running runs, many times each."""

    def prepare() -> Act:
        taken = [running() for _ in range(RUNS)]

        def acts() -> None:
            for number in range(TIMES):
                for run, held in taken:
                    act(run, held, number)

        return acts

    return prepare


def renew(run: Any, held: Any, number: int) -> None:
    hotpath.renew(run, held)


def record_a_read(run: Any, held: Any, number: int) -> None:
    call = calls(number + 1, ToolEffect.READ_ONLY)[-1]
    hotpath.record(run, held, call, RETURNED)


def write(run: Any, held: Any, number: int) -> None:
    call = calls(number + 1, ToolEffect.NON_IDEMPOTENT_WRITE)[-1]
    hotpath.record(run, held, call, RETURNED, hotpath.stamp(run, held, call))


def claim() -> Act:
    runs = [queued() for _ in range(RUNS * TIMES)]

    def act() -> None:
        for run in runs:
            hotrun.claim(run.uuid, OWNER)

    return act


def settle() -> Act:
    taken = [running() for _ in range(RUNS * TIMES)]

    def act() -> None:
        for run, held in taken:
            hotrun.complete(run, held, OUTPUT)

    return act


ACTS: dict[str, Callable[[], Act]] = {
    "renew": on_running(renew),
    "record a read": on_running(record_a_read),
    "stamp and record a write": on_running(write),
    "claim": claim,
    "settle": settle,
}
