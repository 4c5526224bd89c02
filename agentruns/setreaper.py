"""Reaping by sets, on PostgreSQL: one statement for a batch of stale runs.

The verdict is asked once for all runs that it can't tell apart. What each of them has of its own (its
owner, the end of its lease, the jitter of its delay) stays in the database, which puts it into what
was said of its kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models.functions import Now

from .conf import conf
from .encryption import encrypts
from .enums import EventKind
from .fields import Payload
from .models import AgentRun, Event
from .models.event import announce, is_heard
from .models.step import UNRESOLVED_SQL
from .models.stopping import CANCEL_TIME, REAPER, lease_lost
from .rulings import SLOT, Attempt, Kind, Ruling, template
from .verdict import Verdict

# No clock grows old here: a row that somebody holds is left to them, and one that has changed since
# this statement began is judged again as it is now, so that a heartbeat that landed first wins. A
# batch in which a kind has no ruling yet is only looked at.
REAP = """
WITH ruling AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS ruling({columns})
), judged AS MATERIALIZED (
    SELECT *, CASE pending_step_id WHEN {stamped} THEN stamped WHEN {in_doubt} THEN in_doubt END
               AS attempt,
           round(shortest_ms + random() * (longest_ms - shortest_ms))::bigint AS delay_ms
    FROM (
        SELECT run.id, run.uuid, run.agent, run.claimed_by AS owner, run.claim_epoch AS epoch,
               run.lease_expires_at AS lease, run.pending_step_id AS stamped, doubt.id AS in_doubt,
               run.mode, run.requeue_count AS requeues, run.pending_effect AS effect,
               run.cancel_requested_at IS NOT NULL AS is_cancelled,
               run.request IS NOT NULL AS is_stored,
               run.pending_step_id IS NOT NULL AS is_stamped, doubt.id IS NOT NULL AS is_in_doubt
        FROM agentruns_agentrun AS run, LATERAL (
            SELECT max(doubt.id) AS id FROM agentruns_step AS doubt
            WHERE doubt.run_id = run.id AND {unresolved}
        ) AS doubt
        WHERE run.status = 'running' AND run.id > %s
          AND run.lease_expires_at < statement_timestamp()
        ORDER BY run.id LIMIT %s FOR NO KEY UPDATE OF run SKIP LOCKED
    ) AS held LEFT JOIN ruling USING ({kind})
){moves}
SELECT NULL, json_build_array({kind})::text, NULL::bigint, NULL::bigint, NULL::timestamptz {nothing}
FROM judged WHERE number IS NULL GROUP BY {kind}
"""
MOVE = """, {status} AS (
    UPDATE agentruns_agentrun AS run SET {assignments} FROM judged
    WHERE run.id = judged.id AND judged.status = '{status}'
      AND NOT EXISTS (SELECT FROM judged WHERE number IS NULL)
    RETURNING judged.id, owner, epoch, lease, delay_ms, number, attempt, uncertain {named}
)"""
MOVED = """, moved AS MATERIALIZED ({each})
, doubtful AS (
    UPDATE agentruns_step AS step SET state = 'uncertain' FROM moved
    WHERE step.id = moved.attempt AND uncertain AND step.state = 'started'
){history}
SELECT number, NULL, count(*), max(id), min(lease) {details} FROM moved GROUP BY number UNION ALL"""
# As `Payload.of()` writes it, to the letter.
HISTORY = """, told AS (
    INSERT INTO agentruns_event (run_id, kind, actor, epoch, data)
    SELECT id, %s, owner, epoch, format(%s, replace(to_char(lease, %s), '.000000', '')) FROM moved
    UNION ALL
    SELECT id, kind, %s, epoch, format(data, CASE WHEN delay_ms %% 1000 = 0
        THEN delay_ms / 1000 || '.0' ELSE (delay_ms / 1000::float8)::text END)
    FROM moved JOIN ruling USING (number)
)"""
ENCRYPTED_HISTORY = """
    INSERT INTO agentruns_event (run_id, kind, actor, epoch, data)
    SELECT run_id, kind, actor, epoch, data FROM json_to_recordset(%s::json)
        AS line(run_id bigint, kind text, actor text, epoch int, data text)
"""
MOMENT = 'YYYY-MM-DD"T"HH24:MI:SS.US'
ZONE = "TZH:TZM"
DUE = "available_at = statement_timestamp() + delay_ms * interval '1 millisecond'"
# What is not a column of a run.
TYPES = {
    "number": "int",
    "requeues": "int",
    "effect": "text",
    "is_cancelled": "bool",
    "is_stored": "bool",
    "is_stamped": "bool",
    "is_in_doubt": "bool",
    "uncertain": "bool",
    "shortest_ms": "float8",
    "longest_ms": "float8",
    "kind": "text",
    "data": "text",
}
ALWAYS = {"mode", "status", "pending_step_id"}
DETAILS = ("id", "uuid::text", "agent", "owner", "epoch", "lease", "delay_ms")


class StaleRun(NamedTuple):
    """A run as it was when it was reaped, and how long it waits if it was requeued."""

    pk: int
    uuid: str
    agent: str
    owner: str
    epoch: int
    lease_expires_at: datetime
    delay_ms: int


class Batch(NamedTuple):
    """What became of a batch; `last` is its highest primary key, None where nothing was stale.

    `runs` are named only where that was asked for, or where somebody listens to them.
    """

    last: int | None
    verdicts: Counter[Verdict]
    runs: list[tuple[StaleRun, Verdict]]


class SetReaper:
    """Reaps a sweep's batches; it learns what the verdict says of each kind of run."""

    def __init__(self) -> None:
        self._rulings: dict[Kind, Ruling] = {}

    def reap(self, after: int, limit: int, *, named: bool = False) -> Batch:
        """Apply the verdict to the first stale runs above this primary key that nobody else holds.

        The verdict, its columns and its events are those of `AgentRun.reap()`. All of it or nothing:
        a row that the database refuses to change fails the batch, which is then to be reaped row by
        row.
        """
        plain = not encrypts()
        named = named or not plain or is_heard()
        with transaction.atomic(using=conf.DATABASE):
            rows = self._execute(after, limit, named=named, plain=plain)
            while any(row[0] is None for row in rows):
                self._rulings |= {kind: Ruling.on(kind) for kind in _unknown(rows)}
                rows = self._execute(after, limit, named=named, plain=plain)
            found = self._found(rows)
            _tell(found, plain=plain)
        verdicts: Counter[Verdict] = Counter()
        rulings = list(self._rulings.values())
        for number, _kind, count, *_rest in rows:
            verdicts[rulings[number].verdict] += count
        last = max((row[3] for row in rows), default=None)
        return Batch(last, verdicts, [(run, ruling.verdict) for run, ruling in found])

    def _execute(self, after: int, limit: int, *, named: bool, plain: bool) -> list[Any]:
        table = [
            {"number": number, **kind._asdict(), **ruling.row()}
            for number, (kind, ruling) in enumerate(self._rulings.items())
        ]
        sql = REAP.format(
            stamped=int(Attempt.STAMPED),
            in_doubt=int(Attempt.IN_DOUBT),
            unresolved=UNRESOLVED_SQL,
            columns=_recordset(table),
            kind=", ".join(Kind._fields),
            moves=self._moves(named=named, plain=plain),
            nothing=", NULL" * len(DETAILS) if named else "",
        )
        params: list[int | str] = [json.dumps(table), after, limit]
        with connections[conf.DATABASE].cursor() as cursor:
            cursor.execute(sql, [*params, *(_history_params() if plain and table else ())])
            return list(cursor.fetchall())

    def _moves(self, *, named: bool, plain: bool) -> str:
        """An update for each status that a ruling has, and what goes with all of them."""
        moves = {
            ruling.soonest.status: _move(ruling, named=named) for ruling in self._rulings.values()
        }
        if not moves:
            return ""
        return "".join(moves.values()) + MOVED.format(
            each=" UNION ALL ".join(f"TABLE {status}" for status in moves),
            history=HISTORY if plain else "",
            details="".join(f", array_agg({name})" for name in DETAILS) if named else "",
        )

    def _found(self, rows: list[Any]) -> list[tuple[StaleRun, Ruling]]:
        rulings = list(self._rulings.values())
        return sorted(
            (StaleRun(*run), rulings[number])
            for number, _kind, _count, _last, _oldest, *details in rows
            for run in zip(*details, strict=True)
        )


def _unknown(rows: list[Any]) -> Iterable[Kind]:
    return (Kind(*json.loads(row[1])) for row in rows if row[0] is None)


def _move(ruling: Ruling, *, named: bool) -> str:
    assignments = [f"{name} = {_sql_of(name, value)}" for name, value in ruling.columns.items()]
    if ruling.soonest.delay is not None:
        assignments.append(DUE)
    return MOVE.format(
        status=ruling.soonest.status,
        assignments=", ".join(assignments),
        named=", judged.uuid, judged.agent" if named else "",
    )


def _sql_of(name: str, value: Any) -> str:
    if isinstance(value, Now):
        return "statement_timestamp()"
    if value is CANCEL_TIME:
        return "COALESCE(run.cancel_requested_at, statement_timestamp())"
    own = {"pending_step_id": "attempt", "error_message": "format(judged.error_message, owner)"}
    return own.get(name, f"judged.{name}")


def _recordset(table: list[dict[str, Any]]) -> str:
    connection = connections[conf.DATABASE]
    types = {field.attname: field.db_type(connection) for field in AgentRun._meta.concrete_fields}
    names = dict.fromkeys([*TYPES, *sorted(ALWAYS), *(name for row in table for name in row)])
    return ", ".join(f"{name} {TYPES.get(name) or types[name]}" for name in names)


def _history_params() -> list[str]:
    lost = template(dict.fromkeys(lease_lost(None), SLOT), quoted=True) or ""
    # As `isoformat()` writes what Django reads: without USE_TZ it knows no zone.
    moment = MOMENT + ZONE if connections[conf.DATABASE].timezone else MOMENT
    return [EventKind.LEASE_LOST.value, lost, moment, REAPER]


def _tell(found: list[tuple[StaleRun, Ruling]], *, plain: bool) -> None:
    """Write the history where the database can't, and announce it when it has been committed."""
    lines = [line for run, ruling in found for line in _history(run, ruling)]
    if lines and not plain:
        rows = [
            {
                "run_id": run.pk,
                "kind": kind,
                "actor": actor,
                "epoch": run.epoch,
                "data": stored(data),
            }
            for run, kind, actor, data in lines
        ]
        with connections[conf.DATABASE].cursor() as cursor:
            cursor.execute(ENCRYPTED_HISTORY, [json.dumps(rows)])
    if lines and is_heard():
        transaction.on_commit(partial(_announce, lines), using=conf.DATABASE, robust=True)


def stored(data: dict[str, Any]) -> str | None:
    return Payload.of(data).stored if data else None


Line = tuple[StaleRun, EventKind, str, dict[str, Any]]


def _history(run: StaleRun, ruling: Ruling) -> list[Line]:
    return [
        (run, EventKind.LEASE_LOST, run.owner, lease_lost(run.lease_expires_at)),
        (run, ruling.soonest.kind, REAPER, ruling.data(run.delay_ms / 1000)),
    ]


def _announce(lines: list[Line]) -> None:
    for run, kind, actor, data in lines:
        event = Event(run_id=run.pk, kind=kind, actor=actor, epoch=run.epoch)
        announce(UUID(run.uuid), run.agent, event, data)
