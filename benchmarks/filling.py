"""Fill a PostgreSQL database with runs as a busy site has them, by its own generate_series."""

from __future__ import annotations

from typing import Any

from django.db import connection

# Executing at once: as many as there are workers, whatever the table holds.
WORKERS = 48
# The journal of one run that is longer than any page shows.
LONG_JOURNAL = 2_000
AGENTS = ("support", "billing", "research", "retired")

RUNS = """
INSERT INTO agentruns_agentrun (
    uuid, agent, agent_version, mode, requested_by, idempotency_key, correlation_id, trace_context,
    status, termination_reason, error_class, error_message, resolution, resolved_by, claimed_by,
    claim_epoch, lease_expires_at, requeue_count, pending_effect, pending_step_id,
    created_at, available_at, woken_at, started_at, finished_at, request)
SELECT gen_random_uuid(),
    CASE WHEN i < %(rows)s / 4 THEN 'retired' WHEN i %% 10 < 7 THEN 'support' WHEN i %% 1000 <> 999 THEN 'billing' ELSE 'research' END,
    '', 'queued',
    CASE WHEN i < %(rows)s / 4 THEN 'old shop' WHEN i %% 3 = 0 THEN 'shop' ELSE 'user ' || i %% 500 END,
    NULL, CASE WHEN i < %(rows)s / 4 THEN 'import' WHEN i %% 2 = 0 THEN 'order ' || i / 8 ELSE '' END, '',
    status, reason, CASE status WHEN 'failed' THEN 'ConnectionError' ELSE '' END, '',
    CASE WHEN reason = 'interrupted_write' AND i < %(rows)s * 0.7 THEN 'left' ELSE '' END, '',
    CASE status WHEN 'running' THEN 'queue:host:1:' || i ELSE '' END, 1,
    CASE status WHEN 'running' THEN now() + (i %% 50 - 10) * interval '1 second' END, i %% 3,
    CASE WHEN reason = 'interrupted_write' THEN 'non_idempotent_write'
         WHEN status = 'running' AND i %% 2 = 0 THEN 'non_idempotent_write' ELSE '' END, NULL,
    at, CASE WHEN status = 'queued' AND i %% 3 = 0 THEN at + interval '40 days' ELSE at END, at, at,
    CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN at + interval '30 seconds' END,
    CASE WHEN i %% 100 = 0 THEN '1:"' || repeat(md5(i::text), 500) || '"' ELSE '1:"hello"' END
FROM (
    SELECT i, at, status, CASE
        WHEN status = 'completed' THEN 'completed'
        WHEN status = 'cancelled' THEN 'cancelled'
        WHEN status <> 'failed' THEN ''
        WHEN i %% 200 = 7 THEN 'interrupted_write'
        WHEN i %% 200 = 57 THEN 'retries_exhausted'
        WHEN i %% 200 = 107 THEN 'not_retryable'
        ELSE 'provider_failed' END AS reason
    FROM (
        SELECT i, now() - (%(rows)s - i) * (interval '20 days' / %(rows)s) AS at, CASE
            WHEN i > %(rows)s - %(workers)s THEN 'running'
            WHEN i %% 50 = 7 THEN 'failed'
            WHEN i %% 100 = 9 THEN 'cancelled'
            WHEN i %% 200 = 11 THEN 'queued'
            WHEN i %% 400 = 13 THEN 'waiting_for_approval'
            WHEN i %% 400 = 213 THEN 'waiting_for_input'
            ELSE 'completed' END AS status
        FROM generate_series(1, %(rows)s) AS i
    ) AS made
) AS known
"""
STEPS = """
INSERT INTO agentruns_step (
    run_id, key, attempt, recorded_key, position, kind, name, effect, state, outcome, digest,
    error, idempotency_key, epoch, owner, started_at, ended_at, testimony, asked_count,
    late_outcome, late_error, arguments)
SELECT id, 'step', 1, CASE state WHEN 'recorded' THEN 'step' END, 1, kind, 'send_email',
    CASE kind WHEN 'tool' THEN 'non_idempotent_write' ELSE 'read_only' END, state, '', '', '',
    uuid::text, 1, 'queue:host:1:1', started_at,
    CASE state WHEN 'started' THEN NULL ELSE started_at + (id %% 9) * interval '100 ms' END,
    '', 0, '', '', CASE WHEN id %% 100 = 1 THEN '1:"' || repeat(md5(id::text), 500) || '"' END
FROM (
    SELECT id, uuid, started_at,
        CASE status WHEN 'waiting_for_approval' THEN 'approval'
            WHEN 'waiting_for_input' THEN 'input' ELSE 'tool' END AS kind,
        CASE WHEN status LIKE 'waiting%%' OR pending_effect <> '' AND status = 'running'
                THEN 'started'
            WHEN pending_effect <> '' THEN 'uncertain' ELSE 'recorded' END AS state
    FROM agentruns_agentrun
) AS run
"""
FENCES = """
UPDATE agentruns_agentrun AS run SET pending_step_id = step.id
FROM agentruns_step AS step WHERE step.run_id = run.id AND run.pending_effect <> ''
"""
EVENTS = """
INSERT INTO agentruns_event (run_id, kind, at, actor, epoch)
SELECT id, CASE status WHEN 'failed' THEN 'dead_lettered' ELSE 'claimed' END, started_at, 'x', 1
FROM agentruns_agentrun
"""
LONG_STEPS = """
INSERT INTO agentruns_step (
    run_id, key, attempt, recorded_key, position, kind, name, effect, state, outcome, digest,
    error, idempotency_key, epoch, owner, started_at, ended_at, testimony, asked_count,
    late_outcome, late_error)
SELECT %(run)s, 'model:' || i, 1, 'model:' || i, i, 'model', 'gpt', 'read_only', 'recorded',
    'returned', '', '', '', 1, '', now(), now(), '', 0, '', ''
FROM generate_series(1, %(length)s) AS i
"""
LONG_EVENTS = """
INSERT INTO agentruns_event (run_id, kind, at, actor, epoch)
SELECT %(run)s, 'claimed', now(), 'x', 1 FROM generate_series(1, %(length)s)
"""
TABLES = ("agentruns_event", "agentruns_step", "agentruns_agentrun")


def fill(rows: int) -> None:
    """Have exactly this many runs, each with a step and an event, and the planner know about them."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY CASCADE")
        # Payloads that are big stay big: what repeats would be compressed to nothing.
        for table, column in (("agentrun", "request"), ("step", "arguments")):
            cursor.execute(f"ALTER TABLE agentruns_{table} ALTER {column} SET STORAGE EXTERNAL")
        without_triggers(cursor)
        cursor.execute(RUNS, {"rows": rows, "workers": WORKERS})
        # The long journal is the oldest: nothing finds it by looking at the newest rows.
        cursor.execute("SELECT min(id) FROM agentruns_agentrun WHERE status = 'completed'")
        long_one = {"run": cursor.fetchone()[0], "length": LONG_JOURNAL}
        for statement in (LONG_STEPS, LONG_EVENTS):
            cursor.execute(statement, long_one)
        for statement in (STEPS, FENCES, EVENTS):
            cursor.execute(statement.replace("%%", "%"))
        cursor.execute("RESET session_replication_role")
        cursor.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")


def without_triggers(cursor: Any) -> None:
    """Leave out the checks of foreign keys, where the role may: they take most of the time."""
    cursor.execute("SELECT current_setting('is_superuser')")
    if cursor.fetchone() == ("on",):
        cursor.execute("SET session_replication_role = replica")
