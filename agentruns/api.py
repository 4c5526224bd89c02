"""What an application calls. Each function has an `a`-form for async code."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from . import hotrun, registry, slots
from .clock import clock
from .conf import conf
from .dispatch import wake_after_commit
from .enums import WAITING, EventKind, Resolution, RunMode, RunStatus, TerminationReason
from .exceptions import (
    AgentRunError,
    InsideTransaction,
    NoFreeSlot,
    RunCancelled,
    RunFailed,
    RunLost,
    RunNotFound,
    RunUncertain,
)
from .fields import Payload
from .models import AgentRun, Event, Step
from .runner import execute_claimed, owner_name
from .telemetry import span
from .verdict import Weight

if TYPE_CHECKING:
    from .deciders import Decider

__all__ = [
    "Accepted",
    "Completed",
    "RunEvent",
    "RunState",
    "Waiting",
    "Weight",
    "acancel",
    "adecide",
    "aenqueue",
    "aevents",
    "aresolve",
    "arun",
    "astatus",
    "asubmit_input",
    "await_end",
    "cancel",
    "decide",
    "enqueue",
    "events",
    "fail",
    "move",
    "resolve",
    "retry",
    "run",
    "status",
    "submit_input",
    "wait",
    "wake",
]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run that is durable. `created` is false where the idempotency key found an earlier one."""

    uuid: UUID
    created: bool = True


@dataclass(frozen=True, slots=True)
class Completed:
    """A synchronous run that completed, with its output."""

    uuid: UUID
    output: Any


@dataclass(frozen=True, slots=True)
class Waiting:
    """A synchronous run that now waits for a person; it goes on in the background."""

    uuid: UUID
    status: RunStatus


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as it stands. Never its request, which may hold secrets (ADR-102).

    `error` is the class of what it failed with and its text: `KeyError: 'deep in my code'`.
    """

    uuid: UUID
    agent: str
    status: RunStatus
    reason: str
    error: str
    output: Any
    pending_effect: str
    resolution: str
    requeue_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def settled(self) -> bool:
        return self.finished_at is not None

    @property
    def uncertain(self) -> bool:
        """Whether it stopped inside a non-idempotent write on which nobody has given a verdict."""
        return self.reason == TerminationReason.INTERRUPTED_WRITE and not self.resolution


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One line of a run's history; pass its `id` as `after` to read on from there."""

    id: int
    kind: EventKind
    at: datetime
    actor: str
    epoch: int
    data: dict[str, Any]


def enqueue(
    agent: str,
    request: Any = None,
    *,
    idempotency_key: str | None = None,
    requested_by: str = "",
    correlation_id: str = "",
    available_at: datetime | None = None,
    delay_seconds: float = 0.0,
) -> Accepted:
    """Accept a run for execution by a worker.

    The row commits with the caller's transaction, and its wake-up is sent after that; a wake-up that
    is lost is repeated by the reaper. A run that is to begin later is woken by the reaper.

    Raises:
        UnknownAgent: no agent of this name is registered.
        PayloadError: the request can't be kept as JSON, or a name or key not as text.
        IdempotencyConflict: the key belongs to a run with another request.
        AgentRunError: the agent can't begin with this request (of a Pydantic AI agent,
            `nrllm.exceptions.RequestRefused`); nothing was accepted.
    """
    payload = Payload.given(request)
    known = registry.accepting(agent, payload)
    later = available_at is not None or delay_seconds > 0
    with span(f"agent run {agent}", agent=agent, correlation_id=correlation_id):
        accepted, created = hotrun.enqueue(
            agent,
            payload,
            agent_version=known.version,
            idempotency_key=idempotency_key,
            requested_by=requested_by,
            correlation_id=correlation_id,
            available_at=available_at,
            delay_seconds=delay_seconds,
            woken=not later,
        )
    if created and not later:
        wake_after_commit(accepted.uuid)
    return Accepted(accepted.uuid, created)


def run(
    agent: str,
    request: Any = None,
    *,
    requested_by: str = "",
    correlation_id: str = "",
) -> Completed | Waiting:
    """Execute a run here and now, under a lease like a queued one (ADR-141).

    If this process dies, the reaper settles the run; it is not executed again.

    Raises:
        RunFailed: it failed, all its writes being certain; the error is the cause.
        RunUncertain: it stopped inside a non-idempotent write.
        RunCancelled: somebody cancelled it.
        RunLost: this process lost the lease; what becomes of the run is decided elsewhere.
        InsideTransaction: called inside `atomic()`, where a fence would be invisible.
        NoFreeSlot: the agent has as many runs as it may have at a time; nothing was accepted.
        UnknownAgent, PayloadError, AgentRunError: as `enqueue`.
    """
    _refuse_here()
    payload = Payload.given(request)
    known = registry.accepting(agent, payload)
    with (
        span(f"agent run {agent}", agent=agent, correlation_id=correlation_id),
        transaction.atomic(using=conf.DATABASE, durable=True),
    ):
        accepted, _created = hotrun.enqueue(
            agent,
            payload,
            mode=RunMode.SYNCHRONOUS,
            agent_version=known.version,
            requested_by=requested_by,
            correlation_id=correlation_id,
        )
        limits = registry.limits()
        taken = hotrun.claim(accepted.uuid, owner_name("sync"), limits=limits)
        if taken is None and agent in limits:
            raise NoFreeSlot(agent, limits[agent])
    if taken is None:
        raise RunLost(f"run {accepted.uuid} could not be claimed")
    end = execute_claimed(*taken)
    return _outcome(accepted.uuid, end.error)


def _refuse_here() -> None:
    if connections[conf.DATABASE].in_atomic_block:
        raise InsideTransaction("run() was called inside atomic(): call it outside, or enqueue()")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AgentRunError("run() was called on an event loop: use arun()")


def _outcome(uuid: UUID, error: BaseException | None) -> Completed | Waiting:
    state = status(uuid)
    if state.status is RunStatus.COMPLETED:
        return Completed(uuid, state.output)
    if state.status in WAITING:
        return Waiting(uuid, state.status)
    if state.status is RunStatus.CANCELLED:
        raise RunCancelled(uuid) from error
    if state.status is RunStatus.FAILED:
        failed = RunUncertain if state.uncertain else RunFailed
        raise failed(uuid, state.reason, state.error) from error
    raise RunLost(
        f"run {uuid} is {state.status}; this process does not hold it any more"
    ) from error


def _find(uuid: UUID | str) -> AgentRun:
    try:
        wanted = AgentRun.objects.without_payloads().filter(uuid=UUID(str(uuid)))
    except ValueError:
        raise RunNotFound(f"{uuid!r} is not a uuid") from None
    found: AgentRun | None = wanted.first()
    if found is None:
        raise RunNotFound(f"there is no run {uuid}")
    return found


def cancel(uuid: UUID | str, *, by: str = "") -> RunStatus:
    """Cancel a run: at once where no write is in flight, else after that write is recorded.

    Returns the status that the run then has. Raises `RunNotFound`, or `TransitionRefused` for a run
    that has completed or failed.
    """
    to_cancel = _find(uuid)
    status = to_cancel.cancel(by=by)
    transaction.on_commit(
        partial(slots.wake_next, to_cancel.agent), using=conf.DATABASE, robust=True
    )
    return status


def wake(uuid: UUID | str, *, by: str = "") -> bool:
    """Send a due run's wake-up once more. Returns whether the run was due: QUEUED, its time come."""
    run_to_wake = _find(uuid)
    woken = run_to_wake.mark_woken(by=by)
    if woken:
        wake_after_commit(run_to_wake.uuid)
    return woken


def decide(
    uuid: UUID | str, step: str, approved: bool, *, by: Decider, digest: str, note: str = ""
) -> None:
    """Decide on the call that a run waits to have approved; the run then goes on.

    `step` and `digest` are the open question's, as it was shown. Nothing but True is a yes. `by` is
    a user, who must be active and have `agentruns.decide_agentrun` both now and when the write that
    the decision allows is stamped (else the call is put before a person again); or a label, for
    somebody whom another system knows and judges.

    Raises:
        RunNotFound: there is no such run.
        TransitionRefused: it does not wait for this decision (any more), the call has changed, or the
            user has no permission.
    """
    waiting = _find(uuid)
    waiting.decide(step, approved, by=by, digest=digest, note=note)
    wake_after_commit(waiting.uuid)


def retry(uuid: UUID | str, *, by: Decider, reason: str = "") -> None:
    """Execute a dead-lettered run again whose writes are all certain, with a new budget.

    `by` is a label, or a user who must have `agentruns.retry_agentrun` now. Raises `RunNotFound`, or
    `TransitionRefused` where it is not such a run or the user has no permission.
    """
    failed = _find(uuid)
    failed.retry(by=by, reason=reason)
    wake_after_commit(failed.uuid)


def fail(uuid: UUID | str, *, by: str, reason: str) -> None:
    """Give up a queued run, such as one whose version nobody serves: it is dead-lettered.

    It can be retried later. Raises `RunNotFound`, or `TransitionRefused` where it is not queued.
    """
    _find(uuid).fail(by=by, reason=reason)


def move(uuid: UUID | str, version: str, *, by: str, reason: str = "") -> None:
    """Have a run executed by workers that serve this version of its agent, and wake it if it is due.

    Its journal stays as it is: code that does not fit it fails the run, and repeats nothing.

    Raises:
        RunNotFound: there is no such run.
        TransitionRefused: it is running or ended, or of this version already.
        PayloadError: the version is too long.
    """
    moved = _find(uuid)
    if moved.move_to_version(version, by=by, reason=reason):
        wake_after_commit(moved.uuid)


# No result was given; None is one.
NO_RESULT: Any = object()


def resolve(
    uuid: UUID | str,
    verdict: Resolution,
    *,
    by: Decider,
    reason: str,
    digest: str,
    result: Any = NO_RESULT,
    worker_may_act_confirmed: bool = False,
) -> Weight:
    """Give a person's verdict on the write that a run was interrupted in.

    'It happened' needs the `result` (JSON) that the step's body, or the agent's tool, would have
    returned, and lets the run go on with it; 'it did not happen' lets the write be executed again;
    'left' closes it. `digest` is the `AgentRun.resolution_digest()` of the state that was shown.
    Where RESOLVE_NEEDS_SECOND_PERSON, it takes effect when a second person gives the same verdict
    on the same state; what is returned says whether it did, or is a proposal now.

    Raises:
        RunNotFound: there is no such run.
        TransitionRefused: the state has moved on, there is nothing to resolve, the reason or the
            result is missing, there is a result of what did not happen, 'it did not happen' is not
            confirmed while the former worker may still act, or this person may not be the second one.
        ResultRefused: the step can't have had this result.
        UnknownAgent: the agent is not registered here, so that nobody knows what a result looks like.
    """
    doubtful = _find(uuid)
    verdict = Resolution(verdict)
    given = result is not NO_RESULT
    weight = doubtful.resolve(
        verdict,
        by=by,
        reason=reason,
        digest=digest,
        result=_result_in_doubt(doubtful, result) if given else None,
        worker_may_act_confirmed=worker_may_act_confirmed,
    )
    if weight is Weight.TAKES_EFFECT and verdict is not Resolution.LEFT:
        wake_after_commit(doubtful.uuid)
    return weight


def _result_in_doubt(doubtful: AgentRun, result: Any) -> Payload | None:
    _effect, attempt = doubtful.standing_fence()
    step = Step.objects.without_payloads().filter(pk=attempt).first()
    return registry.journaled_result(doubtful.agent, step, result) if step else None


def wait(uuid: UUID | str, *, timeout_seconds: float | None = None) -> RunState:
    """Wait until a run is settled or waits for a person, by polling; return how it stands then.

    Raises:
        RunNotFound: there is no such run.
        TimeoutError: `timeout_seconds` have passed.
    """
    deadline = None if timeout_seconds is None else clock() + timeout_seconds
    pause = 0.05
    while not (state := status(uuid)).settled and state.status not in WAITING:
        if deadline is not None and clock() >= deadline:
            raise TimeoutError(f"run {uuid} is still {state.status} after {timeout_seconds} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
    return state


def submit_input(
    uuid: UUID | str, step: str, answer: Any, *, by: str = "", digest: str | None = None
) -> None:
    """Answer the question of the step that a run waits for, and have the run go on.

    With `digest`, that of the question that was shown, another question of this step is refused.
    Raises `RunNotFound`, `TransitionRefused` where it does not wait for this step, or `PayloadError`
    where the answer is no JSON or does not fit the question.
    """
    waiting = _find(uuid)
    question = waiting.journal().open_questions().filter(key=step).first()
    if question is not None:
        registry.refuse_answer(waiting.agent, question.arguments, answer)
    waiting.answer(step, Payload.given(answer), by=by, digest=digest)
    wake_after_commit(waiting.uuid)


def status(uuid: UUID | str) -> RunState:
    """How a run stands.

    Raises:
        RunNotFound: there is none with this uuid.
        PayloadUnreadable: its stored output is damaged.
    """
    found = _find(uuid)
    return RunState(
        uuid=found.uuid,
        agent=found.agent,
        status=RunStatus(found.status),
        reason=found.termination_reason,
        error=found.error_text,
        output=None if found.output is None else found.output.value,
        pending_effect=found.pending_effect,
        resolution=found.resolution,
        requeue_count=found.requeue_count,
        created_at=found.created_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
    )


def events(uuid: UUID | str, *, after: int = 0) -> list[RunEvent]:
    """The run's history in order, from behind the event with the id `after`: for polling."""
    rows = Event.objects.filter(run_id=_find(uuid).pk, pk__gt=after).order_by("pk")
    return [
        RunEvent(
            id=row.pk,
            kind=EventKind(row.kind),
            at=row.at,
            actor=row.actor,
            epoch=row.epoch,
            data=row.details,
        )
        for row in rows
    ]


adecide = sync_to_async(decide, thread_sensitive=True)
await_end = sync_to_async(wait, thread_sensitive=False)
aenqueue = sync_to_async(enqueue, thread_sensitive=True)
aresolve = sync_to_async(resolve, thread_sensitive=True)
arun = sync_to_async(run, thread_sensitive=True)
acancel = sync_to_async(cancel, thread_sensitive=True)
asubmit_input = sync_to_async(submit_input, thread_sensitive=True)
astatus = sync_to_async(status, thread_sensitive=True)
aevents = sync_to_async(events, thread_sensitive=True)
