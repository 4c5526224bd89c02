"""What every step does, in one statement each on PostgreSQL: stamp, record, renew.

A statement acts in the plain case only, and on the guard of the portable form: the row is locked, and
PostgreSQL judges the conditions again on the row that it locked (READ COMMITTED). For anything else it
changes nothing; then the portable form decides, on every database by the same code, and says why.
None of these conditions is about time, and what they read beside the locked row changes only under
its lock and with its columns.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import TextChoices

from .conf import conf
from .enums import StepState
from .fields import Payload
from .guard import Claim
from .models import AgentRun, Step
from .models.step import UNRESOLVED_SQL, ago, attempt_columns, recorded_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import Model

    from .models import StepCall
    from .models.step import Ending

# The default values that columns have, as SQL.
DEFAULTS: dict[Any, str] = {None: "NULL", "": "''", 0: "0"}

# What goes to the database as it is.
PLAIN = frozenset({str, int, type(None)})

# The owner's guard, as `judge_ownership()` has it. Parameters: run, owner, epoch.
HELD = """
    SELECT id {columns} FROM agentruns_agentrun
    WHERE id = %s AND status = 'running' AND claimed_by = %s AND claim_epoch = %s {further}
    FOR NO KEY UPDATE
"""

RENEW = f"""
    WITH held AS MATERIALIZED ({HELD.format(columns="", further="")})
    UPDATE agentruns_agentrun AS run SET lease_expires_at = clock_timestamp() + %s
    FROM held WHERE run.id = held.id
    RETURNING run.id
"""  # noqa: S608

# A row that somebody holds is left out: who holds it renews it, or is waited for elsewhere.
RENEW_ALL = """
    WITH held AS MATERIALIZED (
        SELECT run.id FROM agentruns_agentrun AS run
        JOIN unnest(%s::bigint[], %s::text[], %s::int[]) AS mine (id, owner, epoch)
            ON run.id = mine.id AND run.claimed_by = mine.owner AND run.claim_epoch = mine.epoch
        WHERE run.status = 'running'
        FOR NO KEY UPDATE OF run SKIP LOCKED
    )
    UPDATE agentruns_agentrun AS run SET lease_expires_at = clock_timestamp() + %s
    FROM held WHERE run.id = held.id
    RETURNING run.id, run.claimed_by, run.claim_epoch
"""

# As `flush_commits()`: the setting is on before anything is written, and ends with the transaction.
FLUSHED = """, CASE WHEN current_setting('synchronous_commit') = 'off'
               THEN set_config('synchronous_commit', 'on', true) END AS flushed"""

STAMPABLE = "AND cancel_requested_at IS NULL AND pending_effect = '' AND pending_step_id IS NULL"

# The journal is the second witness.
WITNESS = f"SELECT FROM agentruns_step AS doubt WHERE doubt.run_id = held.id AND {UNRESOLVED_SQL}"

# An earlier attempt at the step is met by its unique key, which no snapshot can hide.
STAMP = f"""
    WITH held AS MATERIALIZED ({HELD.format(columns=FLUSHED, further=STAMPABLE)}),
    started AS (
        INSERT INTO "agentruns_step" ({{columns}}) SELECT {{values}} FROM held
        WHERE NOT EXISTS ({WITNESS})
        ON CONFLICT DO NOTHING
        RETURNING id, started_at
    )
    UPDATE "agentruns_agentrun" AS run
    SET pending_effect = %s, pending_step_id = started.id, lease_expires_at = clock_timestamp() + %s
    FROM held, started WHERE run.id = held.id
    RETURNING started.id, started.started_at
"""  # noqa: S608

RECORD_READ = f"""
    WITH held AS MATERIALIZED ({HELD.format(columns="", further="")}),
    recorded AS (
        INSERT INTO "agentruns_step" ({{columns}}) SELECT {{values}} FROM held RETURNING id
    )
    UPDATE "agentruns_agentrun" AS run SET lease_expires_at = clock_timestamp() + %s
    FROM held, recorded WHERE run.id = held.id
    RETURNING run.cancel_requested_at IS NOT NULL
"""  # noqa: S608

RECORD_WRITE = f"""
    WITH held AS MATERIALIZED ({HELD.format(columns="", further="")}),
    recorded AS (
        UPDATE "agentruns_step" AS step
        SET {{assignments}}, ended_at = clock_timestamp()
        FROM held
        WHERE step.id = %s AND step.state = 'started' AND step.epoch = %s AND step.owner = %s
        RETURNING step.id
    )
    UPDATE "agentruns_agentrun" AS run
    SET lease_expires_at = clock_timestamp() + %s,
        pending_effect = CASE WHEN run.pending_step_id = recorded.id THEN ''
                              ELSE run.pending_effect END,
        pending_step_id = NULLIF(run.pending_step_id, recorded.id)
    FROM held, recorded WHERE run.id = held.id
    RETURNING run.cancel_requested_at IS NOT NULL
"""  # noqa: S608


def stamp(run: AgentRun, claim: Claim, call: StepCall, approval_key: str | None = None) -> Step:
    """`AgentRun.mark_pending_effect()`, in one statement where that can be."""
    plain = call.attempt == 1 and approval_key is None
    step = _stamp(run, claim, call) if plain and has_statements() else None
    return step or run.mark_pending_effect(claim, call, approval_key)


def record(
    run: AgentRun, claim: Claim, call: StepCall, ending: Ending, step: Step | None = None
) -> bool:
    """`AgentRun.record_step()`, in one statement where that can be."""
    if has_statements():
        row = (
            _record_read(run, claim, call, ending)
            if step is None
            else _record_write(claim, step, ending)
        )
        if row is not None:
            return bool(row[0])
    return run.record_step(claim, call, ending, step)


def renew(run: AgentRun, claim: Claim) -> None:
    """`AgentRun.renew()`, in one statement where that can be."""
    if not has_statements() or fetch(RENEW, [*owner_of(claim), lease()]) is None:
        run.renew(claim)


def renew_all(claims: Sequence[Claim]) -> set[Claim]:
    """Renew the leases that these claims hold, without waiting for a row. Returns the renewed ones."""
    if not has_statements():
        renewed: set[Claim] = AgentRun.objects.renew_all(claims)
        return renewed
    params: list[Any] = [list(column) for column in zip(*map(owner_of, claims), strict=True)]
    params.append(lease())
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(RENEW_ALL, params)
        return {Claim(*row) for row in cursor.fetchall()}


def has_statements() -> bool:
    return connections[conf.DATABASE].vendor == "postgresql"


def _stamp(run: AgentRun, claim: Claim, call: StepCall) -> Step | None:
    columns = {**attempt_columns(run, claim, call, 1), "state": StepState.STARTED}
    sql = with_insert(STAMP, Step, tuple(columns), ended_at="NULL")
    values = [*owner_of(claim), *values_of(columns), call.effect.value, lease()]
    row = fetch(sql, values, durable=True)
    if row is None:
        return None
    step = Step(**columns, id=row[0], started_at=row[1])
    step._state.adding, step._state.db = False, conf.DATABASE
    return step


def _record_read(run: AgentRun, claim: Claim, call: StepCall, ending: Ending) -> Any:
    columns = {**attempt_columns(run, claim, call, call.attempt), **_recorded(call.key, ending)}
    columns["started_at"] = ago(ending.began)
    sql = with_insert(
        RECORD_READ,
        Step,
        tuple(columns),
        started_at="clock_timestamp() - %s",
        ended_at="clock_timestamp()",
    )
    return fetch(sql, [*owner_of(claim), *values_of(columns), lease()])


def _record_write(claim: Claim, step: Step, ending: Ending) -> Any:
    columns = _recorded(step.key, ending)
    sql = _with_update(RECORD_WRITE, tuple(columns))
    where = [step.pk, step.epoch, step.owner]
    return fetch(sql, [*owner_of(claim), *values_of(columns), *where, lease()])


def owner_of(claim: Claim) -> tuple[int, str, int]:
    return claim.run_id, claim.owner, claim.epoch


def lease() -> timedelta:
    return timedelta(seconds=conf.LEASE_SECONDS)


def _recorded(key: str, ending: Ending) -> dict[str, Any]:
    """The columns of a record but for its time: the database's, when it has the lock."""
    columns = recorded_columns(key, ending)
    del columns["ended_at"]
    return columns


@cache
def with_insert(sql: str, model: type[Model], given: tuple[str, ...], **times: str) -> str:
    """Insert a row: values for what is given, these times as SQL, defaults for the rest."""
    values = {**dict.fromkeys(given, "%s"), **times}
    for field in model._meta.concrete_fields:
        if not (field.primary_key or field.has_db_default() or field.attname in values):
            values[field.attname] = DEFAULTS[field.get_default()]
    # Parameters in the order in which they are given.
    names = sorted(values, key=[*given, *values].index)
    quoted = ", ".join(f'"{name}"' for name in names)
    return sql.format(columns=quoted, values=", ".join(values[name] for name in names))


@cache
def _with_update(sql: str, given: tuple[str, ...]) -> str:
    return sql.format(assignments=", ".join(f'"{name}" = %s' for name in given))


def values_of(columns: dict[str, Any]) -> list[Any]:
    return [value_of(value) for value in columns.values()]


def value_of(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, Payload):
        field = Step._meta.get_field("result")
        return field.get_db_prep_save(value, connections[conf.DATABASE])
    return value.value if isinstance(value, TextChoices) else value


def fetch(sql: str, params: list[Any], *, durable: bool = False) -> Any:
    """The one row of a statement that is a transaction of its own, or a part of the caller's."""
    connection = connections[conf.DATABASE]
    with _transaction(durable), connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()


def _transaction(durable: bool) -> AbstractContextManager[None]:
    connection = connections[conf.DATABASE]
    if connection.get_autocommit() and not connection.in_atomic_block:
        return nullcontext()
    return transaction.atomic(using=conf.DATABASE, durable=durable)
