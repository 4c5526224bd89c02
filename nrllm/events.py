"""Where an event of a run's stream belongs, so that whoever keeps events can keep each of them once."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic_ai.agent import EventStreamHandler

from .current import current_step

if TYPE_CHECKING:
    from agentruns.segment import Segment


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The place of an event: no other event of any run has the same.

    `step` is the key of the step that sent it, `epoch` the claim of the segment that executed the
    step, `index` counts the step's events from 0. A step that is recorded is never sent again. One
    whose process died is sent again from its beginning, by a later epoch: of each step, the events
    of the highest epoch are the stream, and those of lower ones are to be dropped.
    """

    run: UUID
    step: str
    epoch: int
    index: int


class _Stream:
    """The events of one step, and the place of the last one that the handler took."""

    def __init__(self, start: EventPlace) -> None:
        self.last = start

    async def counted(self, events: AsyncIterable[Any]) -> AsyncIterator[Any]:
        async for event in events:
            self.last = replace(self.last, index=self.last.index + 1)
            yield event


_stream: ContextVar[_Stream | None] = ContextVar("nrllm_event_stream", default=None)


def event_place() -> EventPlace:
    """The place of the event that the handler took last from its stream.

    Raises:
        LookupError: no event handler of a durable run is running here, or it has taken none yet.
    """
    stream = _stream.get()
    if stream is None or stream.last.index < 0:
        raise LookupError("event_place() is known only inside an event handler of a durable run")
    return stream.last


def placed(handler: EventStreamHandler[Any], segment: Segment) -> EventStreamHandler[Any]:
    """The handler, which can ask for the place of each event that it is given."""

    async def handle(ctx: Any, events: AsyncIterable[Any]) -> None:
        step = current_step()
        if step is None:
            raise LookupError("an event came from outside every step")
        start = EventPlace(segment.run.uuid, step.key, segment.claim.epoch, -1)
        stream = _Stream(start)
        token = _stream.set(stream)
        try:
            await handler(ctx, stream.counted(events))
        finally:
            _stream.reset(token)

    return handle
