"""What a person must know before a verdict or a decision, as data and as text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from .. import registry
from ..conf import conf
from ..enums import StepKind, TerminationReason
from ..exceptions import TransitionRefused, UnknownAgent
from ..models import Step
from ..redaction import redacted, shown
from ..verification import is_to_be_asked
from .rendering import Data, is_stale, json_line, line, step_data, time, unswept

if TYPE_CHECKING:
    from ..models import AgentRun

MAY_ACT = "MAY STILL ACT until {}: did-not-happen then needs --worker-may-act as well"


def doubt_data(run: AgentRun) -> Data:
    """The write in doubt; the digest is read first, so that what comes later refuses the verdict.

    Raises:
        TransitionRefused: the run was not interrupted in a write.
    """
    refuse_unswept(run)
    if run.termination_reason != TerminationReason.INTERRUPTED_WRITE:
        raise TransitionRefused(f"run {run.uuid} has no interrupted write to resolve")
    digest = run.resolution_digest()
    _effect, attempt = run.standing_fence()
    step = Step.objects.filter(pk=attempt).first()
    until = run.former_worker_may_act_until()
    write = step_data(step, attempt, payloads=True) if step else None
    return {
        "uuid": run.uuid,
        "agent": run.agent,
        "digest": digest,
        "resolution": run.resolution,
        "write": write and write | _testimony(run, step),
        "replayed_steps": run.journal().recorded().count(),
        "former_worker_may_act": until is not None,
        "former_worker_may_act_until": until,
        "result_schema": _schema(run, step),
        "needs_second_person": conf.RESOLVE_NEEDS_SECOND_PERSON,
        "proposal": _proposal(run),
    }


def refuse_unswept(run: AgentRun) -> None:
    """Say what a stale run waits for: there is no verdict on it before a sweep.

    Raises:
        TransitionRefused: its lease ran out, and nobody reaped it.
    """
    if is_stale(run):
        raise TransitionRefused(f"run {run.uuid} is running: {unswept(run.lease_expires_at)}")


def _testimony(run: AgentRun, step: Step | None) -> Data:
    """What the destination said, and when it is asked again."""
    to_ask = step is not None and is_to_be_asked(run, step)
    if step is None or not step.testimony:
        return {
            "testimony": "",
            "testimony_note": "",
            "asked_again_at": None,
            "to_be_asked": to_ask,
        }
    return {
        "testimony": step.testimony,
        "testimony_note": redacted("text", run.testimony_note()),
        "asked_again_at": None if run.resolution else step.asked_again_at,
        "to_be_asked": to_ask,
    }


def _schema(run: AgentRun, step: Step | None) -> Data | None:
    try:
        return registry.result_schema(run.agent, step) if step else None
    except UnknownAgent:
        return None


def _proposal(run: AgentRun) -> Data | None:
    """The last verdict that was proposed; `stands` while it counts."""
    last = run.last_proposal()
    if last is None:
        return None
    said, void = last.opinion, run.why_void(last)
    return {
        "by": said.by,
        "verdict": said.verdict,
        "reason": last.why,
        "at": last.at,
        "stands": not void,
        "void": void,
    }


def doubt_text(doubt: Data) -> str:
    write = doubt["write"] or {"name": "?", "key": "its record is missing"}
    until = doubt["former_worker_may_act_until"]
    lines = [f"run {doubt['uuid']} of {line(doubt['agent'])} stopped inside a write"]
    lines += [f"  {key}: {line(value)}" for key, value in _shown(write)]
    if doubt["result_schema"] is not None:
        lines.append(f"its result is held to {json_line(doubt['result_schema'])}")
    lines += _second_person_lines(doubt)
    lines += [
        f"replayed from the journal: {doubt['replayed_steps']} steps",
        "its former worker " + (MAY_ACT.format(time(until)) if until else "counts as gone"),
        f"a verdict on this needs --digest {doubt['digest']}",
    ]
    return "\n".join(lines)


def _second_person_lines(doubt: Data) -> list[str]:
    if not doubt["needs_second_person"]:
        return []
    said = doubt["proposal"]
    if said is None:
        return ["two persons decide: a first verdict only proposes"]
    still = "" if said["stands"] else f" (it counts no more: {line(said['void'])})"
    return [
        f"{line(said['by'])} proposed {said['verdict']}, because: {line(said['reason'])}{still}",
        "it takes effect when another person gives the same verdict",
    ]


def _shown(write: Data) -> list[tuple[str, str]]:
    payloads = ("arguments", "result", "late_result")
    return [
        (key, json_line(value) if key in payloads else str(value))
        for key, value in write.items()
        if value not in ("", None, False)
    ]


def questions_data(run: AgentRun) -> Data:
    """What a run waits for a person to decide, with the digests that the answers need."""
    questions = run.journal().open_questions().order_by("pk")
    names = ("key", "kind", "name", "digest", "started_at")
    asked = [
        {name: getattr(question, name) for name in names}
        | {"arguments": shown("arguments", question.arguments)}
        for question in questions
    ]
    return {"uuid": run.uuid, "agent": run.agent, "status": run.status, "questions": asked}


ANSWERS = {StepKind.APPROVAL: ("--approve", "--deny"), StepKind.INPUT: ("--answer JSON",)}


def _commands(uuid: object, question: Data) -> list[str]:
    """What a person may type; a key may contain what a shell takes for a pattern."""
    key, digest = shlex.quote(line(question["key"])), question["digest"]
    return [
        f"manage.py decide_agent_run {uuid} {key} {answer} --by NAME --digest {digest}"
        for answer in ANSWERS[StepKind(question["kind"])]
    ]


def questions_text(data: Data) -> str:
    lines = [f"run {data['uuid']} of {line(data['agent'])} is {data['status']}"]
    for question in data["questions"]:
        lines.append(f"  {question['kind']} {line(question['key'])} ({line(question['name'])})")
        lines.append(f"      arguments: {json_line(question['arguments'])}")
        lines += [f"      {command}" for command in _commands(data["uuid"], question)]
    return "\n".join(lines)
