"""The named boundaries of a run, between which a crash test ends a worker.

The product has no hook for this and reads nothing that could switch one on: here, code wraps its
methods, in processes that a test has started for that, or for the time of a `with` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.db import connections, transaction

from .. import hotpath, hotrun, verification
from ..attempts import Attempts
from ..conf import conf
from ..models import AgentRun, StepCall
from ..segment import Segment


class Point(StrEnum):
    """Where a process may end. `in_...`: inside the transaction, with everything written in it."""

    CLAIMED = "claimed"
    BEFORE_ASK = "before_ask"
    IN_ASK = "in_ask"
    AFTER_ASK = "after_ask"
    BEFORE_PARK = "before_park"
    IN_PARK = "in_park"
    AFTER_PARK = "after_park"
    BEFORE_STAMP = "before_stamp"
    IN_STAMP = "in_stamp"
    AFTER_STAMP = "after_stamp"
    IN_BODY = "in_body"
    BEFORE_RECORD = "before_record"
    IN_RECORD = "in_record"
    AFTER_RECORD = "after_record"
    BEFORE_COMPLETE = "before_complete"
    IN_COMPLETE = "in_complete"
    AFTER_COMPLETE = "after_complete"
    BEFORE_ASKING = "before_asking"
    AFTER_ASKING = "after_asking"
    IN_VERDICT = "in_verdict"
    AFTER_VERDICT = "after_verdict"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A run's arrival at a boundary; `call` and `idempotency_key` where it is one of a step."""

    point: Point
    run: UUID
    call: StepCall | None = None
    idempotency_key: str = ""


Reached = Callable[[Arrival], None]

# What is to be called at the end of the transaction that is open in this thread.
_at_end: ContextVar[Callable[[], None] | None] = ContextVar("agentruns_at_end", default=None)


@contextmanager
def watched(reached: Reached) -> Iterator[None]:
    """Call `reached` at each boundary that a run in this process comes to.

    It is called on the thread that came there, and may raise, wait, or end the process.
    """
    with ExitStack() as stack:
        for owner, function, name in TRANSITIONS:
            wrapped = _around(getattr(owner, function), name, reached)
            stack.enter_context(patch.object(owner, function, wrapped))
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (AgentRun, "_held", _held),
            (hotpath, "fetch", _fetched),
            (hotrun, "fetch", _fetched),
            (AgentRun, "resolve", _resolving),
            (Segment, "open", _claimed),
            (Segment, "_execute", _with_body),
            (Attempts, "commit", _after_transaction),
            (verification, "_ask", _asking),
            (verification, "_act", _acting),
        ]
        for owner, attribute, wrapper in replaced:
            original = getattr(owner, attribute)
            wrapped = wraps(original)(partial_method(wrapper, original, reached))
            stack.enter_context(patch.object(owner, attribute, wrapped))
        yield


def partial_method(
    wrapper: Callable[..., Any], original: Callable[..., Any], reached: Reached
) -> Callable[..., Any]:
    """A function (a `partial` would not become a method) that calls `wrapper` with these two first."""
    if iscoroutinefunction(wrapper):

        async def awaited(*args: Any, **options: Any) -> Any:
            return await wrapper(original, reached, *args, **options)

        return awaited

    def called(*args: Any, **options: Any) -> Any:
        return wrapper(original, reached, *args, **options)

    return called


# What a worker does to its run that is a boundary, and the name that its points end in.
TRANSITIONS: tuple[tuple[Any, str, str], ...] = (
    (AgentRun, "ask", "ask"),
    (AgentRun, "suspend", "park"),
    (hotpath, "stamp", "stamp"),
    (hotpath, "record", "record"),
    (hotrun, "complete", "complete"),
)


def _around(original: Callable[..., Any], name: str, reached: Reached) -> Callable[..., Any]:
    before, inside, after = (Point(f"{when}_{name}") for when in ("before", "in", "after"))

    @wraps(original)
    def wrapped(run: AgentRun, claim: Any, *args: Any, **options: Any) -> Any:
        call = args[0] if args and isinstance(args[0], StepCall) else None
        reached(Arrival(before, run.uuid, call))
        token = _at_end.set(partial(reached, Arrival(inside, run.uuid, call)))
        try:
            result = original(run, claim, *args, **options)
        finally:
            _at_end.reset(token)
        if not connections[conf.DATABASE].in_atomic_block:
            reached(Arrival(after, run.uuid, call))
        return result

    return wrapped


@contextmanager
def _held(
    original: Callable[..., Any], reached: Reached, run: AgentRun, *args: Any, **options: Any
) -> Iterator[Any]:
    with original(run, *args, **options) as row:
        yield row
        at_end = _at_end.get()
        if at_end is not None:
            at_end()


def _fetched(
    original: Callable[..., Any], reached: Reached, *args: Any, durable: bool = False
) -> Any:
    """Have a statement that commits by itself do so in a step of its own, after the point in it."""
    at_end = _at_end.get()
    if at_end is None:
        return original(*args, durable=durable)
    with transaction.atomic(using=conf.DATABASE, durable=durable):
        row = original(*args)
        if row is not None:
            at_end()
        return row


def _claimed(original: Callable[..., Any], reached: Reached, segment: Segment) -> None:
    reached(Arrival(Point.CLAIMED, segment.run.uuid))
    original(segment)


async def _with_body(
    original: Callable[..., Any],
    reached: Reached,
    segment: Segment,
    call: StepCall,
    body: Callable[[str], Any],
    *args: Any,
) -> Any:
    def begin(key: str) -> None:
        reached(Arrival(Point.IN_BODY, segment.run.uuid, call, key))

    def blocking(key: str) -> Any:
        begin(key)
        return body(key)

    async def on_loop(key: str) -> Any:
        begin(key)
        return await body(key)

    return await original(segment, call, on_loop if iscoroutinefunction(body) else blocking, *args)


def _after_transaction(
    original: Callable[..., Any], reached: Reached, attempts: Attempts, call: StepCall, *args: Any
) -> Any:
    result = original(attempts, call, *args)
    reached(Arrival(Point.AFTER_RECORD, attempts.run.uuid, call))
    return result


def _asking(original: Callable[..., Any], reached: Reached, run: AgentRun, *args: Any) -> Any:
    reached(Arrival(Point.BEFORE_ASKING, run.uuid))
    answer = original(run, *args)
    reached(Arrival(Point.AFTER_ASKING, run.uuid))
    return answer


def _acting(original: Callable[..., Any], reached: Reached, asking: Any, *args: Any) -> None:
    original(asking, *args)
    reached(Arrival(Point.AFTER_VERDICT, asking.run.uuid))


def _resolving(
    original: Callable[..., Any], reached: Reached, run: AgentRun, *args: Any, **options: Any
) -> None:
    original(run, *args, **options)
    reached(Arrival(Point.IN_VERDICT, run.uuid))
