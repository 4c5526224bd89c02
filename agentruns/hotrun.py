"""What every run does once, in one statement each on PostgreSQL: enqueue, claim, complete.

As in `hotpath`: a statement acts in the plain case only, and for anything else it changes nothing, so
that the portable form decides. What is due by the time at which a statement began is due when it has
waited for the lock, too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Unpack

from django.db.models.functions import Now

from . import hotpath
from .conf import conf
from .digests import new_key
from .enums import EventKind, RunStatus, TerminationReason
from .fields import Payload, storable
from .guard import Claim
from .hotpath import HELD, WITNESS, fetch, lease, owner_of, value_of, with_insert
from .models import AgentRun, Event
from .models.event import announce_after_commit, is_heard
from .models.querysets import PAYLOADS, RunOptions
from .models.stopping import move_columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

STATE = tuple(f.attname for f in AgentRun._meta.concrete_fields if f.name not in PAYLOADS)

FIT = f"fit AS MATERIALIZED (SELECT id FROM held WHERE NOT EXISTS ({WITNESS}))"  # noqa: S608

# What an accepted run is given, and what the database finds.
GIVEN = (
    "uuid",
    "agent",
    "agent_version",
    "mode",
    "status",
    "idempotency_key",
    "requested_by",
    "correlation_id",
    "trace_context",
    "request",
)
FOUND = ("id", "created_at", "available_at", "woken_at")
ENQUEUE = f"""
    WITH run AS (
        INSERT INTO "agentruns_agentrun" ({{columns}}) VALUES ({{values}}) ON CONFLICT DO NOTHING
        RETURNING {", ".join(FOUND)}
    ), line AS (
        INSERT INTO "agentruns_event" (run_id, kind, actor, epoch)
        SELECT id, 'queued', %s, 0 FROM run
    )
    SELECT {", ".join(FOUND)} FROM run
"""  # noqa: S608

CLAIM = f"""
    WITH held AS MATERIALIZED (
        SELECT id FROM agentruns_agentrun
        WHERE uuid = %s AND status = 'queued' AND available_at <= statement_timestamp()
            {{served}} {{unlimited}}
        FOR NO KEY UPDATE
    ), {FIT}, taken AS (
        UPDATE "agentruns_agentrun" AS run
        SET status = 'running', claimed_by = %s, claim_epoch = run.claim_epoch + 1,
            lease_expires_at = clock_timestamp() + %s,
            started_at = COALESCE(run.started_at, clock_timestamp()), waits_for_slot = false,
            digest_key = CASE WHEN run.claim_epoch = 0 THEN %s::text ELSE run.digest_key END
        FROM fit WHERE run.id = fit.id
        RETURNING {", ".join(f"run.{name}" for name in STATE)}, run.request IS NOT NULL AS stored
    ), line AS (
        INSERT INTO "agentruns_event" (run_id, kind, actor, epoch, at)
        SELECT id, 'claimed', %s, claim_epoch, clock_timestamp() FROM taken
    )
    SELECT {", ".join(STATE)}, stored FROM taken
"""  # noqa: S608
# The version that this process has of the run's agent; NULL where it does not have the agent.
SERVED = "AND agent_version = (%s::text[])[array_position(%s::text[], agent::text)]"

# Where there are limits, runs are counted under a lock: by the portable form.
UNLIMITED = "AND agent <> ALL(%s::text[])"

COMPLETABLE = "AND cancel_requested_at IS NULL AND pending_effect = ''"
COMPLETE = f"""
    WITH held AS MATERIALIZED ({HELD.format(columns="", further=COMPLETABLE)}),
    {FIT}, settled AS (
        UPDATE "agentruns_agentrun" AS run SET {{assignments}}
        FROM fit WHERE run.id = fit.id
        RETURNING run.id, run.claim_epoch
    )
    INSERT INTO "agentruns_event" (run_id, kind, actor, epoch, at)
    SELECT id, 'completed', %s, claim_epoch, clock_timestamp() FROM settled
    RETURNING epoch
"""  # noqa: S608


def enqueue(
    agent: str, request: Payload | None, **options: Unpack[RunOptions]
) -> tuple[AgentRun, bool]:
    """`AgentRunQuerySet.enqueue()`, in one statement where that can be."""
    now = not options.get("delay_seconds") and options.get("available_at") is None
    if now and hotpath.has_statements():
        run = AgentRun.objects.unsaved(agent, request, **options)
        if _insert(run):
            return run, True
    accepted: tuple[AgentRun, bool] = AgentRun.objects.enqueue(agent, request, **options)
    return accepted


def claim(
    uuid: UUID,
    owner: str,
    served: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
) -> tuple[AgentRun, Claim] | None:
    """`AgentRunQuerySet.claim()`, in one statement where that can be."""
    run = _claim(uuid, owner, served, limits) if hotpath.has_statements() else None
    if run is not None:
        return run, Claim(run.pk, owner, run.claim_epoch)
    taken: tuple[AgentRun, Claim] | None = AgentRun.objects.claim(uuid, owner, served, limits)
    return taken


def complete(run: AgentRun, claim: Claim, output: Payload, usage: Payload | None = None) -> None:
    """`AgentRun.complete()`, in one statement where that can be."""
    if not hotpath.has_statements() or not _complete(run, claim, output, usage):
        run.complete(claim, output, usage)


def _insert(run: AgentRun) -> bool:
    """Insert a run that is due now; whether it was, and no other one has its idempotency key."""
    woken = "NULL" if run.woken_at is None else "statement_timestamp()"
    sql = with_insert(
        ENQUEUE, AgentRun, GIVEN, available_at="statement_timestamp()", woken_at=woken
    )
    actor = storable(run.requested_by, 255)
    row = fetch(sql, [*(value_of(getattr(run, name)) for name in GIVEN), actor])
    if row is None:
        return False
    run.take_over(**dict(zip(FOUND, row, strict=True)))
    _announce(run, EventKind.QUEUED, actor, 0)
    return True


def _claim(
    uuid: UUID, owner: str, served: Mapping[str, str] | None, limits: Mapping[str, int] | None
) -> AgentRun | None:
    mine = [] if served is None else [list(served.values()), list(served)]
    others = [list(limits)] if limits else []
    sql = CLAIM.format(
        served="" if served is None else SERVED, unlimited=UNLIMITED if limits else ""
    )
    actor = storable(owner, 255)
    row = fetch(sql, [uuid, *mine, *others, owner, lease(), value_of(new_key()), actor])
    if row is None:
        return None
    *columns, stored = row
    run = AgentRun.from_db(conf.DATABASE, STATE, columns)
    run.has_stored_request = stored
    _announce(run, EventKind.CLAIMED, actor, run.claim_epoch)
    return run


def _complete(run: AgentRun, claim: Claim, output: Payload, usage: Payload | None) -> bool:
    columns = move_columns(
        RunStatus.COMPLETED,
        {
            "termination_reason": TerminationReason.COMPLETED,
            "output": output,
            "usage": usage,
        },
    )
    times = tuple(name for name, value in columns.items() if isinstance(value, Now))
    values = [value_of(value) for name, value in columns.items() if name not in times]
    actor = storable(claim.owner, 255)
    row = fetch(_with_assignments(tuple(columns), times), [*owner_of(claim), *values, actor])
    if row is not None:
        _announce(run, EventKind.COMPLETED, actor, row[0])
    return row is not None


@cache
def _with_assignments(columns: tuple[str, ...], times: tuple[str, ...]) -> str:
    values = {name: "clock_timestamp()" if name in times else "%s" for name in columns}
    return COMPLETE.format(assignments=", ".join(f'"{k}" = {v}' for k, v in values.items()))


def _announce(run: AgentRun, kind: EventKind, actor: str, epoch: int) -> None:
    if is_heard():
        event = Event(run_id=run.pk, kind=kind, actor=actor, epoch=epoch)
        announce_after_commit(run.uuid, run.agent, event, {})
