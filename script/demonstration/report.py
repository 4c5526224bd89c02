from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any

from agentruns.enums import EventKind, RunStatus, TerminationReason, ToolEffect
from agentruns.models import AgentRun, Step

from .shop import ORDERS

TITLES = ("left alone", "killed inside the e-mail", "killed between two steps")


@dataclass(frozen=True)
class Report:
    """What happened, as facts: JSON for a program, text for a person."""

    model: str
    seconds: float
    runs: list[dict[str, Any]]
    emails: list[dict[str, Any]]
    checks: dict[str, bool]
    admin: dict[str, str]

    @property
    def ok(self) -> bool:
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **vars(self)}


def run_facts(title: str, run: AgentRun) -> dict[str, Any]:
    return {
        "uuid": str(run.uuid),
        "title": title,
        "status": str(run.status),
        "reason": str(run.termination_reason),
        "fence": run.pending_effect,
        "retries": run.requeue_count,
        "output": run.output.value if run.output else None,
        "error": run.error_message,
        "history": [str(event.kind) for event in run.events.order_by("pk")],
        "steps": [step_facts(step) for step in run.steps.order_by("pk")],
    }


def step_facts(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": str(step.kind),
        "effect": str(step.effect),
        "attempt": step.attempt,
        "state": str(step.state),
        "arguments": step.arguments.value if step.arguments and step.kind == "tool" else None,
        "started_at": step.started_at.isoformat(),
        "owner": step.owner,
        "epoch": step.epoch,
    }


def check(runs: list[AgentRun], emails: list[dict[str, Any]]) -> dict[str, bool]:
    """Judge what happened; each name is a promise."""
    undisturbed, interrupted, repeatable = runs
    keys = Counter(email["idempotency_key"] for email in emails)
    recipients = Counter(recipient for email in emails for recipient in email["to"])
    return {
        "each e-mail went out at most once": all(count == 1 for count in keys.values()),
        "no customer received two e-mails": all(count == 1 for count in recipients.values()),
        "all three e-mails were received": {order.email for order in ORDERS.values()}
        == set(recipients),
        "run 1 completed": undisturbed.status == RunStatus.COMPLETED,
        "run 2 was dead-lettered, its fence standing": is_dead_lettered(interrupted),
        "run 3 was executed again and completed": was_replayed(repeatable),
    }


def is_dead_lettered(run: AgentRun) -> bool:
    return (run.status, run.termination_reason, run.pending_effect) == (
        RunStatus.FAILED,
        TerminationReason.INTERRUPTED_WRITE,
        ToolEffect.NON_IDEMPOTENT_WRITE,
    )


def was_replayed(run: AgentRun) -> bool:
    claims = run.events.filter(kind=EventKind.CLAIMED).count()
    sent = run.steps.filter(name="send_email").count()
    return run.status == RunStatus.COMPLETED and claims == 2 and sent == 1


def as_text(report: Report) -> str:
    parts = [
        f"Three runs of one agent, with {report.model}",
        *(run_text(number, run) for number, run in enumerate(report.runs, 1)),
        emails_text(report.emails),
        checks_text(report.checks),
        admin_text(report.admin),
    ]
    return "\n\n".join(parts)


def run_text(number: int, run: dict[str, Any]) -> str:
    lines = [f"Run {number}, {run['title']}: {ending(run)}"]
    if run["reason"] == TerminationReason.INTERRUPTED_WRITE:
        lines += interrupted_text(run)
    elif run["retries"]:
        lines += replayed_text(run)
    if run["output"]:
        lines.append(f"  Its answer: {run['output']}")
    return "\n".join(lines)


def ending(run: dict[str, Any]) -> str:
    if run["status"] == RunStatus.FAILED:
        return f"dead-lettered ({run['status']}, {run['reason']})"
    return str(run["status"])


def interrupted_text(run: dict[str, Any]) -> list[str]:
    write = run["steps"][-1]
    return [
        "  Its worker died in the middle of a write that must not be repeated. The e-mail may have",
        "  gone out or not: the row can't know, so no machine tries again. A person decides, with",
        "  this before them:",
        f"    what    {write['name']}",
        *(f"            {name}: {shortened(value)}" for name, value in write["arguments"].items()),
        f"    since   {write['started_at']}",
        f"    worker  {write['owner']} (epoch {write['epoch']})",
    ]


def shortened(value: Any, width: int = 70) -> str:
    """Return the value on one line."""
    return textwrap.shorten(str(value), width, placeholder=" ...")


def replayed_text(run: dict[str, Any]) -> list[str]:
    replayed = sum(step["epoch"] == 1 for step in run["steps"])
    return [
        f"  Another worker executed it again: {replayed} recorded steps came from the journal, the",
        "  e-mail among them. It was not sent a second time.",
    ]


def emails_text(emails: list[dict[str, Any]]) -> str:
    lines = [f"The mail server received {len(emails)} e-mails:"]
    lines += [f"  to {', '.join(email['to'])}: {email['subject']}" for email in emails]
    return "\n".join(lines)


def checks_text(checks: dict[str, bool]) -> str:
    lines = [f"  {'yes' if passed else 'NO '}  {name}" for name, passed in checks.items()]
    return "\n".join(["Is everything as it must be?", *lines])


def admin_text(admin: dict[str, str]) -> str:
    return (
        "See it in the admin:\n"
        f"  {admin['command']}\n"
        f"  {admin['url']} (user {admin['user']}, password {admin['password']})\n"
        "What you decide there is executed by a worker:\n"
        f"  {admin['worker']}"
    )
