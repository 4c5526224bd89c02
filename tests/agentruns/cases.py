"""Runs in the states that an operator meets, made by the transitions themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test import override_settings

from agentruns import registry
from agentruns.api import enqueue
from agentruns.enums import FailureClass, StepKind, StepOutcome, ToolEffect
from agentruns.failures import Failure
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step, StepCall
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from agentruns.registry import Answer, RegisteredAgent, Verifier
from agentruns.verification import verify
from tests.harness.runs import reread

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0},
        "colour": {"enum": ["red", "green", 3]},
        "sure": {"type": "boolean"},
        "more": {"type": "array"},
    },
    "required": ["name", "colour"],
}

WORKER = "queue:elsewhere:1:aa"


@contextmanager
def conf(**values: Any) -> Iterator[None]:
    """Settings of the app, for a `with` block."""
    with override_settings(AGENTRUNS={**settings.AGENTRUNS, **values}):
        yield


def queued(agent: str = "echo", request: Any = "hello", **options: Any) -> AgentRun:
    run: AgentRun = AgentRun.objects.get(uuid=enqueue(agent, request, **options).uuid)
    return run


def running(*, stale: bool = False, **options: Any) -> tuple[AgentRun, Claim]:
    """A run that a worker executes; `stale`: one whose lease ran out."""
    run = queued(**options)
    with conf(LEASE_SECONDS=-1 if stale else 60):
        taken: tuple[AgentRun, Claim] | None = AgentRun.objects.claim(run.uuid, WORKER)
    assert taken is not None
    return taken


def call(
    key: str = "send",
    effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
    arguments: Any = None,
    kind: StepKind = StepKind.CALL,
) -> StepCall:
    return StepCall(
        key=key,
        name=key,
        kind=kind,
        effect=effect,
        arguments=Payload.of(arguments),
        digest="",
        position=1,
    )


def writing(
    *,
    stale: bool = False,
    effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
    arguments: Any = None,
    **options: Any,
) -> tuple[AgentRun, Claim, Step]:
    """A run inside a write, with its fence standing."""
    run, claim = running(**options)
    with conf(LEASE_SECONDS=-1 if stale else 60):
        step = run.mark_pending_effect(claim, call(effect=effect, arguments=arguments))
    return reread(run), claim, step


def interrupted(**options: Any) -> AgentRun:
    """A run dead-lettered inside a write."""
    run, claim, step = writing(**options)
    run.recover(claim, Failure(FailureClass.UNKNOWN), OSError("connection lost"), step)
    return reread(run)


def failed(
    failure_class: FailureClass = FailureClass.UNKNOWN, message: str = "boom", **options: Any
) -> AgentRun:
    """A dead-lettered run whose writes are all certain."""
    run, claim = running(**options)
    run.recover(claim, Failure(failure_class), RuntimeError(message))
    return reread(run)


def exhausted(**options: Any) -> AgentRun:
    with conf(MAX_REQUEUES=0):
        return failed(FailureClass.TRANSIENT, **options)


def completed(output: Any = "done", **options: Any) -> AgentRun:
    run, claim = running(**options)
    ending = Ending(StepOutcome.RETURNED, Payload.of(output))
    run.record_step(claim, call("read", ToolEffect.READ_ONLY, {"of": "read"}), ending)
    run.complete(claim, Payload.of(output))
    return reread(run)


def asking(kind: StepKind = StepKind.INPUT, arguments: Any = "sure?", **options: Any) -> AgentRun:
    """A run that waits for an answer, or for an approval of a call with these arguments."""
    run, claim = running(**options)
    stored = Payload.of(arguments)
    run.ask(
        claim,
        StepCall("ask", "ask", kind, ToolEffect.READ_ONLY, stored, stored.digest, 1),
    )
    run.suspend(claim)
    return reread(run)


def answered(run: AgentRun) -> Any:
    """What was answered to the one question of this run."""
    result = Step.objects.get(run=run).result
    return None if result is None else result.value


def reaped() -> AgentRun:
    """A run whose worker was not seen to end inside its write."""
    run = writing(stale=True)[0]
    sweep()
    return reread(run)


def told_too_early(note: str = "no such key") -> AgentRun:
    """A run whose destination said 'not landed' while the former worker could still act."""
    run = reaped()
    doubt = Verifier(lambda doubt: Answer.not_landed(note))
    former = registry._agents.get(run.agent)
    registry._agents[run.agent] = RegisteredAgent(
        run.agent, lambda segment: None, verifiers={"send": doubt}
    )
    try:
        verify(run.uuid)
    finally:
        del registry._agents[run.agent]
        if former is not None:
            registry._agents[run.agent] = former
    return reread(run)
