"""A database of the benchmark's own on the server that DATABASE_URL names, filled and emptied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from .beside import DATABASE as DBOS_DATABASE

NAME = "agentruns_benchmark"

# Settled runs, each with a step and an event, of every age up to a year; `first` is the lowest key.
RUNS = """
    INSERT INTO agentruns_agentrun (id, uuid, agent, agent_version, mode, requested_by,
        correlation_id, trace_context, status, termination_reason, error_class, error_message,
        resolution, resolved_by, claimed_by, claim_epoch, requeue_count, pending_effect, request,
        output, created_at, available_at, started_at, finished_at)
    SELECT n, gen_random_uuid(), 'agent ' || n %% 20, '', 'queued', 'person ' || n %% 1000, '', '',
        CASE WHEN n %% 100 = 0 THEN 'failed' ELSE 'completed' END,
        CASE WHEN n %% 100 = 0 THEN 'not_retryable' ELSE 'completed' END,
        '', '', '', '', '', 1, 0, '', '1:"a request"', '1:"an output"', t, t, t, t
    FROM (SELECT n, now() - random() * interval '365 days' AS t
          FROM generate_series(%(first)s::bigint, %(last)s) AS n) AS many
"""
STEPS = """
    INSERT INTO agentruns_step (run_id, key, attempt, recorded_key, position, kind, name, effect,
        state, outcome, arguments, digest, result, error, idempotency_key, epoch, owner, ended_at,
        testimony, asked_count, late_outcome, late_error)
    SELECT n, 'step', 1, 'step', 1, 'call', 'step', 'non_idempotent_write', 'recorded', 'returned',
        '1:{"to":"customer"}', '', '1:"sent"', '', gen_random_uuid(), 1, 'worker', now(), '', 0,
        '', ''
    FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""
EVENTS = """
    INSERT INTO agentruns_event (run_id, kind, actor, epoch, at)
    SELECT n, 'completed', 'worker', 1, now() FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""
# The rows that measurements make have keys above those of the filling.
FIRST_MEASURED = 1_000_000_000
RESTART = "SELECT setval(pg_get_serial_sequence('agentruns_agentrun', 'id'), %s)"
TABLES = "agentruns_agentrun, agentruns_step, agentruns_event"
STEP_OF_FILLING = 250_000


@contextmanager
def own_database() -> Iterator[str]:
    """Make the database, and have DATABASE_URL name it; drop it at the end."""
    server = os.environ["DATABASE_URL"]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {NAME}")
    os.environ["DATABASE_URL"] = urlunsplit(urlsplit(server)._replace(path=f"/{NAME}"))
    try:
        yield os.environ["DATABASE_URL"]
    finally:
        os.environ["DATABASE_URL"] = server
        with psycopg.connect(server, autocommit=True) as connection:
            for name in (NAME, DBOS_DATABASE):
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


def fill(upto: int) -> None:
    """Have so many settled runs beside those that are measured, with fresh statistics."""
    with connect() as connection:
        connection.execute("SET synchronous_commit = off")
        row = connection.execute(
            "SELECT coalesce(max(id), 0) FROM agentruns_agentrun WHERE id < %s", [FIRST_MEASURED]
        ).fetchone()
        first = (row[0] if row else 0) + 1
        while first <= upto:
            portion = {"first": first, "last": min(first + STEP_OF_FILLING - 1, upto)}
            for sql in (RUNS, STEPS, EVENTS):
                connection.execute(sql, portion)
            first += STEP_OF_FILLING
        connection.execute(RESTART, [FIRST_MEASURED])
        clear(connection)


def clear(connection: psycopg.Connection) -> None:
    """Remove what a measurement made, and count the rest anew."""
    for table, column in (("step", "run_id"), ("event", "run_id"), ("agentrun", "id")):
        connection.execute(f"DELETE FROM agentruns_{table} WHERE {column} >= {FIRST_MEASURED}")
    connection.execute(f"VACUUM ANALYZE {TABLES}")
