"""The raw limit: psycopg, one prepared statement in autocommit for each transaction.

Written for themselves, not taken from the product: each does the least that must be done to the same
tables, without a second witness, a cancel or a fence to look for.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

OWNED = "run.id = %s AND run.status = 'running' AND run.claimed_by = %s AND run.claim_epoch = %s"
LEASE = "lease_expires_at = clock_timestamp() + interval '60 seconds'"
STEP = """
    run_id, key, attempt, recorded_key, position, kind, name, effect, state, outcome, arguments,
    digest, result, error, idempotency_key, epoch, owner, ended_at, testimony, asked_count,
    late_outcome, late_error
"""

STAMP = f"""
    WITH step AS (
        INSERT INTO agentruns_step ({STEP})
        VALUES (%s, %s, 1, NULL, %s, 'call', %s, 'non_idempotent_write', 'started', '', %s,
                '', NULL, '', %s, %s, %s, NULL, '', 0, '', '')
        RETURNING id
    )
    UPDATE agentruns_agentrun AS run
    SET pending_effect = 'non_idempotent_write', pending_step_id = step.id, {LEASE}
    FROM step WHERE {OWNED} RETURNING step.id
"""
RECORD_WRITE = f"""
    WITH step AS (
        UPDATE agentruns_step SET state = 'recorded', recorded_key = key, outcome = 'returned',
               result = %s, ended_at = clock_timestamp()
        WHERE id = %s AND state = 'started' RETURNING id
    )
    UPDATE agentruns_agentrun AS run
    SET pending_effect = '', pending_step_id = NULL, {LEASE} FROM step WHERE {OWNED}
"""
RECORD_READ = f"""
    WITH step AS (
        INSERT INTO agentruns_step ({STEP})
        VALUES (%s, %s, 1, %s, %s, 'call', %s, 'read_only', 'recorded', 'returned', %s,
                '', %s, '', %s, %s, %s, clock_timestamp(), '', 0, '', '')
        RETURNING id
    )
    UPDATE agentruns_agentrun AS run SET {LEASE} FROM step WHERE {OWNED}
"""
RENEW = f"UPDATE agentruns_agentrun AS run SET {LEASE} WHERE {OWNED}"

EVENT = "INSERT INTO agentruns_event (run_id, kind, actor, epoch, data)"
ENQUEUE = f"""
    WITH run AS (
        INSERT INTO agentruns_agentrun (uuid, agent, agent_version, mode, requested_by,
            correlation_id, trace_context, status, termination_reason, error_class, error_message,
            resolution, resolved_by, claimed_by, claim_epoch, requeue_count, pending_effect,
            request, woken_at)
        VALUES (%s, 'benchmark', '', 'queued', '', '', '', 'queued', '', '', '', '', '', '', 0, 0,
                '', %s, now())
        RETURNING id
    )
    {EVENT} SELECT id, 'queued', '', 0, NULL FROM run
"""
CLAIM = f"""
    WITH held AS (
        SELECT id FROM agentruns_agentrun
        WHERE uuid = %s AND status = 'queued' AND available_at <= now() FOR NO KEY UPDATE
    ), run AS (
        UPDATE agentruns_agentrun AS run
        SET status = 'running', claimed_by = %s, claim_epoch = claim_epoch + 1, {LEASE},
            started_at = now()
        FROM held WHERE run.id = held.id RETURNING run.id, run.claimed_by, run.claim_epoch
    )
    {EVENT} SELECT id, 'claimed', claimed_by, claim_epoch, NULL FROM run RETURNING run_id, epoch
"""
SETTLE = f"""
    WITH settled AS (
        UPDATE agentruns_agentrun AS run
        SET status = 'completed', termination_reason = 'completed', claimed_by = '',
            lease_expires_at = NULL, finished_at = now(), output = %s
        WHERE {OWNED} RETURNING run.id, run.claim_epoch
    )
    {EVENT} SELECT id, 'completed', %s, claim_epoch, NULL FROM settled
"""
RECORDED = """
    SELECT id, key, name, kind, digest, outcome, attempt FROM agentruns_step
    WHERE run_id = %s ORDER BY id
"""
RESULT = "SELECT result FROM agentruns_step WHERE run_id = %s AND recorded_key = %s"


class Raw:
    """One psycopg connection, whose every statement is prepared and a transaction of its own."""

    def __init__(self) -> None:
        self.connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.cursor = self.connection.cursor()

    def execute(self, sql: str, *params: Any) -> psycopg.Cursor[Any]:
        return self.cursor.execute(sql, params, prepare=True)
