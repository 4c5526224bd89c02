"""What a person must know before a verdict or a decision, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..enums import TerminationReason
from ..exceptions import TransitionRefused
from ..models import Step
from .rendering import Data, json_line, line, payload_value, step_data

if TYPE_CHECKING:
    from ..models import AgentRun


def doubt_data(run: AgentRun) -> Data:
    """The write in doubt; the digest is read first, so that what comes later refuses the verdict.

    Raises:
        TransitionRefused: the run was not interrupted in a write.
    """
    if run.termination_reason != TerminationReason.INTERRUPTED_WRITE:
        raise TransitionRefused(f"run {run.uuid} has no interrupted write to resolve")
    digest = run.resolution_digest()
    _effect, attempt = run.standing_fence()
    step = Step.objects.filter(pk=attempt).first()
    write = step_data(step, attempt, payloads=True) if step else None
    return {
        "uuid": run.uuid,
        "agent": run.agent,
        "digest": digest,
        "resolution": run.resolution,
        "write": write and write | {"testimony": step.testimony if step else ""},
        "replayed_steps": run.journal().recorded().count(),
        "former_worker_may_act": run.former_worker_may_act(),
    }


def doubt_text(doubt: Data) -> str:
    write = doubt["write"] or {"name": "?", "key": "its record is missing"}
    may_act = doubt["former_worker_may_act"]
    lines = [f"run {doubt['uuid']} of {line(doubt['agent'])} stopped inside a write"]
    lines += [f"  {key}: {line(value)}" for key, value in _shown(write)]
    lines += [
        f"replayed from the journal: {doubt['replayed_steps']} steps",
        "its former worker " + ("MAY STILL ACT" if may_act else "is gone"),
        f"a verdict on this needs --digest {doubt['digest']}",
    ]
    return "\n".join(lines)


def _shown(write: Data) -> list[tuple[str, str]]:
    payloads = ("arguments", "result", "late_result")
    return [
        (key, json_line(value) if key in payloads else str(value))
        for key, value in write.items()
        if value not in ("", None)
    ]


def questions_data(run: AgentRun) -> Data:
    """What a run waits for a person to decide, with the digests that the answers need."""
    questions = run.journal().open_questions().order_by("pk")
    names = ("key", "kind", "name", "digest", "started_at")
    shown = [
        {name: getattr(question, name) for name in names}
        | {"arguments": payload_value(question.arguments)}
        for question in questions
    ]
    return {"uuid": run.uuid, "agent": run.agent, "status": run.status, "questions": shown}


def questions_text(data: Data) -> str:
    lines = [f"run {data['uuid']} of {line(data['agent'])} is {data['status']}"]
    for question in data["questions"]:
        lines.append(f"  {question['kind']} {line(question['key'])} ({line(question['name'])})")
        lines.append(f"      arguments: {json_line(question['arguments'])}")
        lines.append(f"      --digest {question['digest']}")
    return "\n".join(lines)
