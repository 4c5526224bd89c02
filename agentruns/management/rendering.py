"""What the commands print: each thing as plain data, and as text made from that data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..exceptions import PayloadUnreadable
from ..fields import Payload

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

    from ..models import AgentRun, Event, Step

Data = dict[str, Any]

RUN_COLUMNS = (
    "uuid", "agent", "agent_version", "mode", "status", "termination_reason", "error_class",
    "error_message", "pending_effect", "resolution", "resolved_by", "resolved_at",
    "cancel_requested_at", "claimed_by", "claim_epoch", "lease_expires_at", "requeue_count",
    "requested_by", "correlation_id", "idempotency_key", "created_at", "available_at", "woken_at",
    "started_at", "finished_at",
)  # fmt: skip
STEP_COLUMNS = (
    "key", "attempt", "kind", "name", "effect", "state", "outcome", "error", "idempotency_key",
    "epoch", "owner", "started_at", "ended_at", "late_outcome", "late_error", "late_at",
)  # fmt: skip
LISTED = ("uuid", "status", "termination_reason", "pending_effect", "requeue_count", "agent")


def emit(command: BaseCommand, as_json: bool, data: Any, text: Callable[[Any], str]) -> None:
    """Print one thing, as one line of JSON or as text, at once."""
    command.stdout.write(json_line(data) if as_json else text(data))
    command.stdout.flush()


def json_line(data: Any) -> str:
    return json.dumps(data, default=_plain)


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


# As data.


def run_data(run: AgentRun) -> Data:
    """A run without its payloads."""
    return {name: getattr(run, name) for name in RUN_COLUMNS}


def full_run_data(
    run: AgentRun, steps: Iterable[Step], events: Iterable[Event], *, payloads: bool
) -> Data:
    """A run with its steps and its history; the deferred payloads are read only if asked for."""
    data = run_data(run)
    if payloads:
        data |= {name: payload_value(getattr(run, name)) for name in ("request", "output", "usage")}
    data["steps"] = [step_data(step, run.pending_step_id, payloads) for step in steps]
    data["events"] = [event_data(event) for event in events]
    return data


def step_data(step: Step, fenced: int | None, payloads: bool) -> Data:
    data = {name: getattr(step, name) for name in STEP_COLUMNS} | {"fence": step.pk == fenced}
    if payloads:
        names = ("arguments", "result", "late_result")
        data |= {name: payload_value(getattr(step, name)) for name in names}
    return data


def event_data(event: Event) -> Data:
    return {
        "kind": event.kind,
        "at": event.at,
        "actor": event.actor,
        "epoch": event.epoch,
        "data": payload_value(event.data) or {},
    }


def payload_value(payload: Payload | None) -> Any:
    """The decoded value; for one that is damaged, what is known about that."""
    try:
        return None if payload is None else payload.value
    except PayloadUnreadable as error:
        return {"unreadable": str(error)}


# As text.


def line(text: object) -> str:
    """A text on one line that does nothing to a terminal, whoever wrote it."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def _time(at: datetime | None) -> str:
    return at.isoformat(sep=" ", timespec="milliseconds") if at else ""


def report_text(report: Data) -> str:
    would = "would have been " if report["dry_run"] else ""
    names = ("requeued", "dead_lettered", "cancelled", "woken", "asked", "errors")
    lines = [would + ", ".join(f"{name.replace('_', '-')} {report[name]}" for name in names)]
    for run in report["runs"]:
        why = run["error"] or run["reason"]
        lines.append(f"{run['uuid']} {line(run['agent'])}: {run['action']} {line(why)}".rstrip())
    return "\n".join(lines)


def runs_text(runs: list[Data]) -> str:
    """A table: one run a line."""
    head = ("run", "status", "reason", "fence", "retries", "agent")
    rows = [head, *[tuple(line(run[name]) for name in LISTED) for run in runs]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def run_text(run: Data) -> str:
    """A run's page: what is set, its payloads if there, its steps, its events."""
    lines = [f"{name}: {_shown(run[name])}" for name in RUN_COLUMNS if run[name] not in ("", None)]
    lines += [f"{name}: {json_line(run[name])}" for name in ("request", "output") if name in run]
    lines += ["", "steps:"] if run["steps"] else ["", "no steps"]
    for step in run["steps"]:
        lines += _step_lines(step)
    lines += ["", "events:"]
    lines += [_event_line(event) for event in run["events"]]
    return "\n".join(lines)


def _shown(value: object) -> str:
    return _time(value) if isinstance(value, datetime) else line(value)


def _step_lines(step: Data) -> list[str]:
    fence = "  <- THE FENCE STANDS HERE" if step["fence"] else ""
    lines = [
        f"  {_time(step['started_at'])}  {line(step['key'])} (attempt {step['attempt']}, "
        f"{step['kind']}, {step['effect']}): {step['state']} {step['outcome']}".rstrip()
        + fence
    ]
    lines += [f"      {name}: {line(step[name])}" for name in ("error", "late_error") if step[name]]
    if step["late_outcome"]:
        lines.append(f"      reported late, at {_time(step['late_at'])}: {step['late_outcome']}")
    for name in ("arguments", "result", "late_result"):
        if step.get(name) is not None:
            lines.append(f"      {name}: {json_line(step[name])}")
    return lines


def _event_line(event: Data) -> str:
    details = " ".join(f"{key}={line(value)}" for key, value in event["data"].items())
    return f"  {_time(event['at'])}  {event['kind']} by {line(event['actor'] or '?')} {details}".rstrip()
