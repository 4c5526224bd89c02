"""What must hold of a run at every moment, judged from its rows and from who saw its bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..enums import (
    TERMINAL,
    WAITING,
    EventKind,
    RunStatus,
    StepState,
    TerminationReason,
    ToolEffect,
)
from ..models import AgentRun, Event, Step

ONCE = ToolEffect.NON_IDEMPOTENT_WRITE


@dataclass(frozen=True, slots=True)
class Body:
    """The start of a step's body, as somebody outside the run has seen it."""

    key: str
    name: str
    effect: str
    idempotency_key: str


def assert_at_most_once(
    uuid: UUID | str, bodies: Iterable[Body] = (), *, did_not_happen: int = 0
) -> None:
    """Assert that a run kept its promises: no non-idempotent write of it was started twice.

    `bodies` are those that `counted_bodies()` or the crash kit has seen. `did_not_happen` says how
    many verdicts 'it did not happen' allowed a write to be executed again.

    Raises:
        AssertionError: with every promise that was broken.
    """
    broken = broken_promises(uuid, list(bodies), did_not_happen=did_not_happen)
    if broken:
        raise AssertionError(f"run {uuid}: " + "; ".join(broken))


def broken_promises(
    uuid: UUID | str, bodies: Sequence[Body], *, did_not_happen: int = 0
) -> list[str]:
    """Describe every promise that this run has broken so far; none is an empty list."""
    run = AgentRun.objects.get(uuid=uuid)
    steps = list(run.journal().without_payloads().order_by("pk"))
    history = list(run.history().order_by("pk"))
    return [
        *repeated_bodies(bodies, did_not_happen),
        *other_keys(bodies),
        *lost_fences(run, steps),
        *unrecorded_bodies(steps, bodies),
        *broken_history(run, history),
    ]


def repeated_bodies(bodies: Sequence[Body], did_not_happen: int) -> Iterator[str]:
    started = Counter(body.key for body in bodies if body.effect == ONCE)
    for key, times in started.items():
        if times > 1 + did_not_happen:
            yield f"the body of {key}, which must not be repeated, was started {times} times"


def other_keys(bodies: Sequence[Body]) -> Iterator[str]:
    """A repeated body must get the same idempotency key, and no other step may get that."""
    if len({(body.key, body.idempotency_key) for body in bodies}) > len(
        {body.key for body in bodies}
    ):
        yield "an attempt of a step was given another idempotency key"


def lost_fences(run: AgentRun, steps: Sequence[Step]) -> Iterator[str]:
    """A non-idempotent attempt without record or verdict, and the fence, go together."""
    open_writes = [
        step
        for step in steps
        if step.effect == ONCE and step.state in (StepState.STARTED, StepState.UNCERTAIN)
    ]
    interrupted = run.termination_reason == TerminationReason.INTERRUPTED_WRITE
    if len(open_writes) > 1:
        yield f"{len(open_writes)} writes are uncertain at once"
    if open_writes and run.pending_effect != ONCE:
        yield f"the fence of {open_writes[0].key} was cleared without a recorded outcome"
    if open_writes and run.status in TERMINAL and not interrupted:
        yield f"the run is {run.status}, but {open_writes[0].key} is uncertain"
    # What a verdict called not applied, and its worker then reported as landed, is in doubt again.
    denied = any(step.effect == ONCE and step.landed_late for step in steps)
    if interrupted and not open_writes and not denied:
        yield "the run was dead-lettered inside a write that the journal does not have"
    if run.status in WAITING and run.pending_effect:
        yield "the run waits for a person with its fence standing"


def unrecorded_bodies(steps: Sequence[Step], bodies: Sequence[Body]) -> Iterator[str]:
    """A write whose body was seen has an attempt in the journal, whatever became of it."""
    known = {step.key for step in steps}
    fenced = {ONCE, ToolEffect.IDEMPOTENT_WRITE}
    for key in {body.key for body in bodies if body.effect in fenced} - known:
        yield f"the body of {key} was started, and the journal does not know of it"


BEGINS = {EventKind.QUEUED, EventKind.REQUEUED, EventKind.GIVEN_BACK, EventKind.RESOLVED,
          EventKind.RETRIED, EventKind.GRANTED, EventKind.DENIED, EventKind.ANSWERED}  # fmt: skip
ENDS = {
    EventKind.COMPLETED: RunStatus.COMPLETED,
    EventKind.CANCELLED: RunStatus.CANCELLED,
    EventKind.DEAD_LETTERED: RunStatus.FAILED,
    EventKind.PARKED: None,
    EventKind.REQUEUED: RunStatus.QUEUED,
    EventKind.GIVEN_BACK: RunStatus.QUEUED,
}


def broken_history(run: AgentRun, history: Sequence[Event]) -> Iterator[str]:
    """The history tells the same story as the row, with nothing missing and nothing twice."""
    kinds = [EventKind(event.kind) for event in history]
    if kinds.count(EventKind.QUEUED) != 1 or kinds[0] is not EventKind.QUEUED:
        yield "the history does not begin with one acceptance"
    claims = [event.epoch for event in history if event.kind == EventKind.CLAIMED]
    if claims != list(range(1, run.claim_epoch + 1)):
        yield f"the history has claims {claims}, the row epoch {run.claim_epoch}"
    if sum(kind in TERMINAL_KINDS for kind in kinds) > 1 + sum(
        kind in (EventKind.RESOLVED, EventKind.RETRIED) for kind in kinds
    ):
        yield f"the run was settled twice: {[str(kind) for kind in kinds]}"
    running = False
    for kind in kinds:
        if kind is EventKind.CLAIMED and running:
            yield "the run was claimed while it was claimed"
        running = kind is EventKind.CLAIMED or (running and kind not in ENDS)
    if running != (run.status == RunStatus.RUNNING):
        yield f"the row is {run.status}, the history says otherwise: {[str(k) for k in kinds]}"
    last = next((kind for kind in reversed(kinds) if kind in ENDS), None)
    if run.status in TERMINAL and (last is None or ENDS[last] != run.status):
        yield f"the row is {run.status}, the history ends with {last}"


TERMINAL_KINDS = {EventKind.COMPLETED, EventKind.CANCELLED, EventKind.DEAD_LETTERED}
