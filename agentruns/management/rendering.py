"""What the commands print: each thing as plain data, and as text made from that data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import registry, slots
from ..enums import RunStatus
from ..redaction import redacted, shown

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

    from ..models import AgentRun, Event, Step

Data = dict[str, Any]

RUN_COLUMNS = (
    "uuid", "agent", "agent_version", "mode", "status", "termination_reason", "error_class",
    "error_message", "pending_effect", "resolution", "resolved_by", "resolved_at",
    "cancel_requested_at", "claimed_by", "claim_epoch", "lease_expires_at", "requeue_count",
    "requested_by", "correlation_id", "idempotency_key", "created_at", "available_at", "woken_at",
    "waits_for_slot", "started_at", "finished_at",
)  # fmt: skip
STEP_COLUMNS = (
    "key", "attempt", "kind", "name", "effect", "state", "outcome", "error", "idempotency_key",
    "epoch", "owner", "started_at", "ended_at", "late_outcome", "late_error", "late_at",
)  # fmt: skip
LISTED = (
    "uuid", "status", "termination_reason", "pending_effect", "pending_tool", "requeue_count",
    "agent",
)  # fmt: skip


def emit(command: BaseCommand, as_json: bool, data: Any, text: Callable[[Any], str]) -> None:
    """Print one thing, as one line of JSON or as text, at once."""
    command.stdout.write(json_line(data) if as_json else text(data))
    command.stdout.flush()


def json_line(data: Any) -> str:
    return json.dumps(_finite(data), default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    """NaN and the infinities as strings: JSON does not have them (see `Payload`)."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value


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


def listed_data(runs: Iterable[AgentRun]) -> list[Data]:
    """Runs of a list: with the tool that each is inside, and with the slots that it waits for."""
    once = cache(slots_data)
    return [
        run_data(run)
        | {
            "pending_tool": run.pending_tool or "",  # type: ignore[attr-defined]
            "served_here": registry.served().get(run.agent),
            "slots": once(run.agent) if run.waits_for_slot else None,
        }
        for run in runs
    ]


def slots_data(agent: str) -> Data | None:
    """How many runs of an agent there are, and may be at a time; None where nobody knows here."""
    found = slots.slots_of(agent)
    return None if found is None else {"running": found.running, "most": found.most}


def full_run_data(
    run: AgentRun, steps: Iterable[Step], events: Iterable[Event], *, payloads: bool
) -> Data:
    """A run with its steps and its history; the deferred payloads are read only if asked for."""
    data = run_data(run)
    if payloads:
        data |= {name: shown(name, getattr(run, name)) for name in ("request", "output", "usage")}
    if run.status == RunStatus.RUNNING:
        data["stale"] = is_stale(run)
    if run.status == RunStatus.QUEUED:
        data["served_here"] = registry.served().get(run.agent)
        data["untaken"] = type(run).objects.untaken().filter(pk=run.pk).exists()
        data["slots"] = slots_data(run.agent) if run.waits_for_slot else None
    data["steps"] = [step_data(step, run.pending_step_id, payloads) for step in steps]
    data["events"] = [event_data(event) for event in events]
    return data


def is_stale(run: AgentRun) -> bool:
    """Whether its lease has run out, by the database's clock, and nobody reaped it."""
    found: bool = type(run).objects.stale().filter(pk=run.pk).exists()
    return found


def step_data(step: Step, fenced: int | None, payloads: bool) -> Data:
    data = {name: getattr(step, name) for name in STEP_COLUMNS} | {
        "fence": step.pk == fenced,
        "by_verdict": step.settled_by_verdict,
    }
    if payloads:
        names = ("arguments", "result", "late_result")
        data |= {name: shown(name, getattr(step, name)) for name in names}
    return data


def event_data(event: Event) -> Data:
    return {
        "kind": event.kind,
        "at": event.at,
        "actor": event.actor,
        "epoch": event.epoch,
        "data": redacted("event", event.details),
    }


# As text.


def line(text: object) -> str:
    """A text on one line that does nothing to a terminal, whoever wrote it."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def time(at: datetime | None) -> str:
    return at.isoformat(sep=" ", timespec="milliseconds") if at else ""


def unswept(lease: datetime | None) -> str:
    """What to do about a run that is stale."""
    return (
        f"its lease ran out at {time(lease)}; no reaper has swept since: run manage.py "
        "reap_stale_agent_runs"
    )


def report_text(report: Data) -> str:
    would = "would have been " if report["dry_run"] else ""
    names = ("requeued", "dead_lettered", "cancelled", "woken", "asked", "not_sent", "errors")
    lines = [would + ", ".join(f"{name.replace('_', '-')} {report[name]}" for name in names)]
    lines += [f"{uuid}: woken" for uuid in report["woken_runs"]]
    for run in report["runs"]:
        why = run["error"] or run["reason"]
        lines.append(f"{run['uuid']} {line(run['agent'])}: {run['action']} {line(why)}".rstrip())
    return "\n".join(lines)


def runs_text(runs: list[Data]) -> str:
    """A table: one run a line."""
    if not runs:
        return "no runs"
    head = ("run", "status", "reason", "fence", "inside", "retries", "agent")
    return table([head, *[[listed_cell(run, name) for name in LISTED] for run in runs]])


def listed_cell(run: Data, name: str) -> object:
    if name == "agent":
        return f"{run['agent']} {run['agent_version']}".strip()
    if name != "termination_reason":
        return run[name]
    if run["waits_for_slot"]:
        return _waits(run)
    elsewhere = run["status"] == RunStatus.QUEUED and run["served_here"] != run["agent_version"]
    return "not served by this code" if elsewhere else run[name]


def _waits(run: Data) -> str:
    """Why a run in line waits; of an agent that is not known here, nobody can say how many there are."""
    found = run.get("slots")
    how_many = f": {found['running']} of {found['most']} running" if found else ""
    return f"waits for a free slot{how_many}"


def table(rows: Iterable[Iterable[object]]) -> str:
    """Lines whose columns stand below each other."""
    cells = [[line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def run_text(run: Data) -> str:
    """A run's page: what is set, its payloads if there, its steps, its events."""
    said = [name for name in RUN_COLUMNS if run[name] not in ("", None)]
    lines = [f"{name}: {_shown(run[name])}" for name in said if name != "waits_for_slot"]
    lines += [_waits(run)] if run["waits_for_slot"] else []
    lines += [f"{name}: {json_line(run[name])}" for name in ("request", "output") if name in run]
    if run.get("stale"):
        lines.append(unswept(run["lease_expires_at"]))
    if run.get("untaken"):
        since = time(run["available_at"])
        lines.append(f"due and not taken since {since}: nobody serves it, or has time for it")
    if "served_here" in run and run["served_here"] != run["agent_version"]:
        lines.append(_mismatch(run))
    lines += ["", "steps:"] if run["steps"] else ["", "no steps"]
    for step in run["steps"]:
        lines += _step_lines(step)
    lines += ["", "events:"]
    lines += [_event_line(event) for event in run["events"]]
    return "\n".join(lines)


def _mismatch(run: Data) -> str:
    here = run["served_here"]
    has = (
        "does not have this agent" if here is None else f"has version {line(here)!r} of this agent"
    )
    return f"needs version {line(run['agent_version'])!r}; this process {has}, others may differ"


def _shown(value: object) -> str:
    return time(value) if isinstance(value, datetime) else line(value)


def _step_lines(step: Data) -> list[str]:
    fence = "  <- THE FENCE STANDS HERE" if step["fence"] else ""
    ended = "by a verdict" if step["by_verdict"] else step["outcome"]
    lines = [
        f"  {time(step['started_at'])}  {line(step['name'])} ({line(step['key'])}, attempt "
        f"{step['attempt']}, {step['kind']}, {step['effect']}): {step['state']} {ended}".rstrip()
        + fence
    ]
    lines += [f"      {name}: {line(step[name])}" for name in ("error", "late_error") if step[name]]
    if step["late_outcome"]:
        lines.append(f"      reported late, at {time(step['late_at'])}: {step['late_outcome']}")
    for name in ("arguments", "result", "late_result"):
        if step.get(name) is not None:
            lines.append(f"      {name}: {json_line(step[name])}")
    return lines


def _event_line(event: Data) -> str:
    known = {key: value for key, value in event["data"].items() if value not in ("", None)}
    details = " ".join(f"{key}={line(value)}" for key, value in known.items())
    by = f" by {line(event['actor'])}" if event["actor"] else ""
    return f"  {time(event['at'])}  {event['kind']}{by} {details}".rstrip()
