"""A run in every status and doubt, with steps and events, as rows of whatever tables there are.

The runs are of the agents of `tests.project`, so that today's code can go on with them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from agentruns.enums import (
    EventKind,
    Resolution,
    RunStatus,
    StepKind,
    StepOutcome,
    StepState,
    TerminationReason,
    ToolEffect,
)
from agentruns.fields import Payload

READ, WRITE = ToolEffect.READ_ONLY, ToolEffect.NON_IDEMPOTENT_WRITE
REPEATABLE = ToolEffect.IDEMPOTENT_WRITE
QUESTION = Payload.of("how many?")
PLAN = Payload.of([["ask", 0], [READ.value, 0]])
DONE = Payload.of({"done": "earlier", "key": "earlier"})

CLAIMED = {"claimed_by": "queue:host:1:earlier", "claim_epoch": 1}
STALE = {"status": RunStatus.RUNNING, **CLAIMED, "lease_expires_at": Now() - timedelta(hours=1)}
HELD = {"status": RunStatus.RUNNING, **CLAIMED, "lease_expires_at": Now() + timedelta(hours=1)}
FAILED = {"status": RunStatus.FAILED, "claim_epoch": 1, "finished_at": Now()}
INTERRUPTED = {**FAILED, "termination_reason": TerminationReason.INTERRUPTED_WRITE}

# Of each run: its columns, and its steps.
RUNS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}


def step(key: str, effect: ToolEffect, state: StepState, **columns: Any) -> dict[str, Any]:
    recorded = state == StepState.RECORDED
    ended = {
        "recorded_key": key,
        "outcome": StepOutcome.RETURNED,
        "result": DONE,
        "ended_at": Now(),
    }
    return {
        "key": key,
        "name": key,
        "kind": StepKind.CALL,
        "effect": effect,
        "state": state,
        "attempt": 1,
        "epoch": 1,
        "owner": CLAIMED["claimed_by"],
        "idempotency_key": "earlier",
        **(ended if recorded else {}),
        **columns,
    }


def question(kind: StepKind) -> dict[str, Any]:
    about = {"kind": kind, "arguments": QUESTION, "digest": QUESTION.digest}
    return step("0-ask", READ, StepState.STARTED, **about)


READ_BEFORE = step("read_before", READ, StepState.RECORDED)
WRITTEN = step("write", WRITE, StepState.RECORDED)
STARTED = step("write", WRITE, StepState.STARTED)
UNCERTAIN = step("write", WRITE, StepState.UNCERTAIN)
REPEATED = step("write", REPEATABLE, StepState.STARTED)

RUNS["queued"] = {}, []
RUNS["requeued"] = {"claim_epoch": 1, "requeue_count": 1}, [READ_BEFORE, WRITTEN]
RUNS["held"] = HELD, [READ_BEFORE]
RUNS["stale"] = STALE, [READ_BEFORE, WRITTEN]
RUNS["stale in a write"] = {**STALE, "pending_effect": WRITE}, [READ_BEFORE, STARTED]
RUNS["stale in a repeatable write"] = (
    {**STALE, "agent": "repeatable_write", "pending_effect": REPEATABLE},
    [READ_BEFORE, REPEATED],
)
RUNS["waiting for input"] = (
    {"status": RunStatus.WAITING_FOR_INPUT, "claim_epoch": 1, "agent": "plan", "request": PLAN},
    [question(StepKind.INPUT)],
)
RUNS["waiting for approval"] = (
    {"status": RunStatus.WAITING_FOR_APPROVAL, "claim_epoch": 1},
    [question(StepKind.APPROVAL)],
)
RUNS["completed"] = (
    {
        "status": RunStatus.COMPLETED,
        "termination_reason": TerminationReason.COMPLETED,
        "finished_at": Now(),
        "output": DONE,
        "usage": DONE,
    },
    [READ_BEFORE, WRITTEN],
)
RUNS["cancelled"] = (
    {
        "status": RunStatus.CANCELLED,
        "termination_reason": TerminationReason.CANCELLED,
        "finished_at": Now(),
    },
    [],
)
RUNS["interrupted"] = {**INTERRUPTED, "pending_effect": WRITE}, [READ_BEFORE, UNCERTAIN]
RUNS["left"] = (
    {**INTERRUPTED, "pending_effect": WRITE, "resolution": Resolution.LEFT, "resolved_at": Now()},
    [UNCERTAIN],
)
RUNS["exhausted"] = (
    {
        **FAILED,
        "termination_reason": TerminationReason.RETRIES_EXHAUSTED,
        "requeue_count": 3,
        "error_class": "OSError",
        "error_message": "its host was gone \u2026",
    },
    [READ_BEFORE, WRITTEN],
)

EVENTS = (EventKind.QUEUED, EventKind.CLAIMED)


def populate(apps: Any) -> None:
    """Write all of it with the models of these apps."""
    for name, (columns, steps) in RUNS.items():
        given = {"agent": "one_write", "request": Payload.of({}), **columns}
        run = insert(apps, "AgentRun", idempotency_key=name, correlation_id=name, **given)
        written = [insert(apps, "Step", run=run, **one) for one in steps]
        for kind in EVENTS:
            insert(apps, "Event", run=run, kind=kind, actor="earlier", data=Payload.of({"n": 1}))
        if columns.get("pending_effect"):
            rows(apps, "AgentRun").filter(pk=run.pk).update(pending_step=written[-1].pk)


def insert(apps: Any, model: str, **columns: Any) -> Any:
    row = rows(apps, model).model(**columns)
    # What may be written into which column is the transitions' business, which these rows precede.
    row.save_base(raw=True, force_insert=True)
    return row


def rows(apps: Any, model: str) -> Any:
    found = apps.get_model("agentruns", model)._base_manager
    return found.get_queryset() if hasattr(found, "get_queryset") else found


def contents(apps: Any) -> dict[str, list[dict[str, Any]]]:
    """Every value of every row, payloads as their texts."""
    return {
        model: [
            {name: said(value) for name, value in row.items()}
            for row in rows(apps, model).order_by("pk").values()
        ]
        for model in ("AgentRun", "Step", "Event")
    }


def said(value: Any) -> Any:
    return value.text if isinstance(value, Payload) else value
