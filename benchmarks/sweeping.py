"""The reaper over many stale runs, beside one bare UPDATE of the same rows."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection as PipeConnection
from typing import Any

import psycopg
from django.test import override_settings

from agentruns.hotpath import RENEW
from agentruns.reaper import sweep

from .database import FIRST_MEASURED, clear, connect
from .measure import spread

# Of ten runs, seven were between two steps, one in a write, one in a repeatable write, and one had
# been taken back as often as it may be.
STALE = """
    INSERT INTO agentruns_agentrun (id, uuid, agent, agent_version, mode, requested_by,
        correlation_id, trace_context, status, termination_reason, error_class, error_message,
        resolution, resolved_by, claimed_by, claim_epoch, requeue_count, pending_effect, request,
        created_at, started_at, lease_expires_at)
    SELECT n, gen_random_uuid(), 'agent ' || n % 20, '', 'queued', '', '', '', 'running', '', '',
        '', '', '', 'queue:host:' || n, 1, CASE WHEN n % 10 = 9 THEN 3 ELSE 0 END,
        CASE n % 10 WHEN 7 THEN 'non_idempotent_write' WHEN 8 THEN 'idempotent_write' ELSE '' END,
        '1:"a request"', now(), now(), now() - interval '1 minute'
    FROM generate_series({first}, {last}) AS n
"""
ATTEMPTS = """
    WITH step AS (
        INSERT INTO agentruns_step (run_id, key, attempt, position, kind, name, effect, state,
            outcome, arguments, digest, error, idempotency_key, epoch, owner, testimony,
            asked_count, late_outcome, late_error)
        SELECT id, 'write', 1, 1, 'call', 'write', pending_effect, 'started', '', '1:null', '', '',
            gen_random_uuid(), 1, claimed_by, '', 0, '', ''
        FROM agentruns_agentrun WHERE id >= {first} AND pending_effect <> ''
        RETURNING id, run_id
    )
    UPDATE agentruns_agentrun AS run SET pending_step_id = step.id FROM step
    WHERE run.id = step.run_id
"""
# The least that anybody could do: one statement, one end for all, no verdict and no history.
BARE = """
    UPDATE agentruns_agentrun SET status = 'queued', claimed_by = '', lease_expires_at = NULL,
        pending_effect = '', pending_step_id = NULL, requeue_count = requeue_count + 1,
        available_at = now() + interval '1 hour', woken_at = NULL
    WHERE status = 'running' AND lease_expires_at < now()
"""


def make_stale(connection: psycopg.Connection, number: int) -> None:
    clear(connection)
    first, last = FIRST_MEASURED + 1, FIRST_MEASURED + number
    connection.execute(STALE.format(first=first, last=last))
    connection.execute(ATTEMPTS.format(first=first))
    connection.execute("VACUUM ANALYZE agentruns_agentrun, agentruns_step, agentruns_event")
    connection.execute("CHECKPOINT")


# What its workers renew while a sweep goes on.
ALIVE = """
    UPDATE agentruns_agentrun SET lease_expires_at = now() + interval '1 hour', claimed_by = 'alive'
    WHERE id > {first}
"""
LIVE_RUNS = 50
BATCH = 1000
LEASE = timedelta(hours=1)


def reaper(*, stale: int, rounds: int) -> list[dict[str, Any]]:
    """Runs a second, the bare UPDATE and the reaper in turn; the ratio of the two rates by rounds.

    After them the wake-ups of what was requeued, and the longest renewal beside one more sweep.
    """
    logging.getLogger("django-q").setLevel(logging.WARNING)
    found: dict[str, list[float]] = defaultdict(list)
    before = peak_megabytes()
    with connect() as connection, override_settings(AGENTRUNS=WAITING_AN_HOUR):
        for _round in range(rounds):
            for name in random.sample([BARE_UPDATE, REAPER], 2):
                make_stale(connection, stale)
                act = sweep_once if name == REAPER else partial(bare, connection)
                found[name].append(timed(act, stale))
                if name == REAPER:
                    found[WAKE_UPS].append(woken(connection, stale))
            make_stale(connection, stale + LIVE_RUNS)
            longest, each = longest_renewal(connection, stale)
            found[RENEWAL].append(longest)
            found["batch"].append(each * min(BATCH, stale))
        clear(connection)
    grown = f"; at its peak {peak_megabytes() - before} MB more memory"
    return [
        row(BARE_UPDATE, found, ""),
        row(REAPER, found, ratio(found, BARE_UPDATE, REAPER, "of the bare rate") + grown),
        row(WAKE_UPS, found, ratio(found, BARE_UPDATE, WAKE_UPS, "of the bare rate")),
        row(RENEWAL, found, ratio(found, RENEWAL, "batch", f"of a batch of {BATCH}")),
    ]


BARE_UPDATE, REAPER = "bare UPDATE", "reaper"
WAKE_UPS, RENEWAL = "its wake-ups", "the longest renewal beside it"
# As in the bare UPDATE, so that no wake-up is due before it is to be measured.
WAITING_AN_HOUR = {"RETRY_BACKOFF_SECONDS": 3600, "RETRY_BACKOFF_MAX_SECONDS": 3600}


def row(name: str, found: dict[str, list[float]], said: str) -> dict[str, Any]:
    return {
        "benchmark": "reaper",
        "processes": 1,
        "contender": name,
        "microseconds": spread(found[name], 1),
        "per_second": round(1e6 / statistics.median(found[name])),
        "said": said,
    }


def ratio(found: dict[str, list[float]], over: str, under: str, what: str) -> str:
    pairs = zip(found[over], found[under], strict=True)
    rate = spread([one / other for one, other in pairs], 2)
    return f"{rate['median']} ({rate['q1']} to {rate['q3']}) {what}"


def timed(act: Callable[[], int], number: int) -> float:
    """Microseconds for each of so many runs."""
    began = time.perf_counter()
    done = act()
    if done != number:
        raise AssertionError(f"{done} of {number} runs")
    return (time.perf_counter() - began) / number * 1e6


def bare(connection: psycopg.Connection) -> int:
    return connection.execute(BARE).rowcount


def sweep_once() -> int:
    report = sweep(batch_size=BATCH)
    if report.failures:
        raise AssertionError(report.failures)
    return report.reaped


def woken(connection: psycopg.Connection, stale: int) -> float:
    """Have all that was requeued be due, and a sweep wake it: microseconds for each."""
    due = connection.execute(
        "UPDATE agentruns_agentrun SET available_at = now() WHERE status = 'queued' AND id >= %s",
        [FIRST_MEASURED],
    ).rowcount
    connection.execute("VACUUM ANALYZE agentruns_agentrun")
    each = timed(lambda: sweep(batch_size=BATCH).woken, due)
    connection.execute("TRUNCATE django_q_ormq")
    return each


def longest_renewal(connection: psycopg.Connection, stale: int) -> tuple[float, float]:
    """Renew live runs from another process while a sweep goes on: the longest, and the sweep's each."""
    connection.execute(ALIVE.format(first=FIRST_MEASURED + stale))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=renew_until_told, args=(theirs, stale), daemon=True)
    worker.start()
    ours.recv()
    each = timed(sweep_once, stale)
    ours.send("enough")
    longest: float = ours.recv()
    worker.join()
    return longest, each


def renew_until_told(pipe: PipeConnection, stale: int) -> None:
    longest = 0.0
    first = FIRST_MEASURED + stale + 1
    with connect() as connection:
        pipe.send("ready")
        for number in itertools.count():
            if pipe.poll():
                break
            began = time.perf_counter()
            held = (first + number % LIVE_RUNS, "alive", 1, LEASE)
            assert connection.execute(RENEW, held, prepare=True).fetchone()
            longest = max(longest, time.perf_counter() - began)
    pipe.send(longest * 1e6)
    os._exit(0)  # without closing the connections of the process that it is a copy of


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
