"""Runs in the states that tests begin with, made by the transitions themselves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import transaction
from django.db.models.functions import Now

from agentruns import registry
from agentruns.enums import RunStatus, StepKind, StepOutcome, TerminationReason, ToolEffect
from agentruns.failures import classify
from agentruns.fields import Payload
from agentruns.guard import Claim, from_now
from agentruns.models import AgentRun, Event, Step, StepCall
from agentruns.models.step import Ending
from agentruns.segment import Segment
from agentruns.tasks import execute
from agentruns.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])

READ = ToolEffect.READ_ONLY
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
REPEATABLE = ToolEffect.IDEMPOTENT_WRITE
TRANSACTIONAL = ToolEffect.TRANSACTIONAL_WRITE

OWNER = "test:host:1:00000000"


def call(
    key: str = "write", effect: ToolEffect = WRITE, arguments: Any = None, attempt: int = 1
) -> StepCall:
    stored = None if arguments is None else Payload.of(arguments)
    return StepCall(
        key=key,
        name=key,
        kind=StepKind.CALL,
        effect=effect,
        arguments=stored,
        digest=stored.digest if stored else "",
        position=1,
        attempt=attempt,
    )


def returned(value: Any = None) -> Ending:
    return Ending(StepOutcome.RETURNED, Payload.of(value))


def queued(agent: str = "agent", request: Any = "a request", **options: Any) -> AgentRun:
    stored = None if request is None else Payload.of(request)
    run: AgentRun = AgentRun.objects.enqueue(agent, stored, **options)[0]
    return run


def claim(run: AgentRun, owner: str = OWNER) -> tuple[AgentRun, Claim]:
    taken: tuple[AgentRun, Claim] | None = AgentRun.objects.claim(run.uuid, owner)
    assert taken is not None, f"{run} could not be claimed"
    return taken


def running(owner: str = OWNER, **options: Any) -> tuple[AgentRun, Claim]:
    return claim(queued(**options), owner)


def fenced(effect: ToolEffect = WRITE, **options: Any) -> tuple[AgentRun, Claim, Step]:
    run, claimed = running(**options)
    step = run.mark_pending_effect(claimed, call(effect=effect))
    return run, claimed, step


def with_status(status: RunStatus) -> AgentRun:
    """A run of this status, without a fence."""
    if status is RunStatus.QUEUED:
        return queued()
    run, claimed = running()
    if status in (RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT):
        run.ask(claimed, question(status))
        run.suspend(claimed)
    elif status is RunStatus.COMPLETED:
        run.complete(claimed, Payload.of("output"))
    elif status is RunStatus.FAILED:
        fail(run, claimed)
    elif status is RunStatus.CANCELLED:
        run.cancel(by="somebody")
    return reread(run)


def question(status: RunStatus = RunStatus.WAITING_FOR_INPUT, key: str = "question") -> StepCall:
    kind = StepKind.INPUT if status is RunStatus.WAITING_FOR_INPUT else StepKind.APPROVAL
    return StepCall(key, key, kind, READ, Payload.of("sure?"), Payload.of("sure?").digest, 1)


def fail(run: AgentRun, claimed: Claim, error: BaseException | None = None) -> Verdict:
    """Have the segment that owns the run fail, with an error that a retry can't cure."""
    error = error or ValueError("a bug")
    return run.recover(claimed, classify(error), error)


def dead_lettered_write(**options: Any) -> tuple[AgentRun, Step]:
    """A run whose worker died inside a non-idempotent write, reaped."""
    run, _claimed, step = fenced(**options)
    expire(run)
    reap(run)
    row = reread(run)
    assert row.termination_reason == TerminationReason.INTERRUPTED_WRITE
    return row, step


def expire(run: AgentRun) -> None:
    """Let the lease have run out, by the database's clock."""
    AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=from_now(-1))


def lose(run: AgentRun) -> None:
    """Reap it when its lease is over, at the same moment: no renewal comes between."""
    with transaction.atomic():
        expire(run)
        reap(run)


def make_due(run: AgentRun) -> None:
    """End the pause before a retry."""
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=Now())


def empty_fence_by_hand(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).write_guarded(pending_effect="", pending_step=None)


def reap(run: AgentRun) -> Verdict:
    with transaction.atomic():
        stale: list[AgentRun] = list(AgentRun.objects.lock_stale([run.pk]))
        assert len(stale) == 1, f"{run} is not stale"
        return stale[0].reap()


def reread(run: AgentRun) -> AgentRun:
    row: AgentRun = AgentRun.objects.for_judgement().get(pk=run.pk)
    return row


def reread_by_uuid(uuid: uuid.UUID) -> AgentRun:
    row: AgentRun = AgentRun.objects.get(uuid=uuid)
    return row


def step_of(run: AgentRun, key: str = "write") -> Step:
    """The last attempt at this step."""
    step: Step = Step.objects.filter(run=run, key=key).latest("attempt")
    return step


def history(run: AgentRun) -> list[str]:
    return list(Event.objects.filter(run=run).order_by("pk").values_list("kind", flat=True))


def snapshot(run: AgentRun) -> Any:
    """Everything that is stored about a run: equal before and after a refused transition."""
    return [
        list(AgentRun.objects.filter(pk=run.pk).values()),
        list(Step.objects.filter(run=run).order_by("pk").values()),
        list(Event.objects.filter(run=run).order_by("pk").values()),
    ]


@contextmanager
def registered(function: F, **options: Any) -> Iterator[str]:
    """Register an agent for the time of a `with` block; its name."""
    name = f"agent-{uuid.uuid4().hex[:8]}"
    registry.add(registry.RegisteredAgent(name, function, **options))
    try:
        yield name
    finally:
        del registry._agents[name]


def executed(function: Callable[[Segment], Any], request: Any = "a request") -> AgentRun:
    """Queue a run of this function and execute one segment of it here; the run as it is then."""
    with registered(function) as agent:
        run = queued(agent, request)
        execute(str(run.uuid))
        return reread(run)


def execute_again(run: AgentRun, function: Callable[[Segment], Any]) -> AgentRun:
    """Execute another segment of a queued run, with this code, whatever its pause."""
    make_due(run)
    registry._agents[run.agent] = registry.RegisteredAgent(run.agent, function)
    try:
        execute(str(run.uuid))
    finally:
        del registry._agents[run.agent]
    return reread(run)
