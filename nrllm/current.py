from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID, uuid5

from agentruns.enums import ToolEffect

from .keys import digest


class InnerCalls:
    """The tool calls of the agents that one attempt at a step runs inside itself."""

    def __init__(self) -> None:
        self.wrote = False
        self._asked: dict[str, Iterator[int]] = {}

    def key(self, outer: str, tool: str, arguments: Any) -> str:
        """Make the key of an inner call: the same on each attempt that makes the same calls.

        Calls of one tool with the same arguments are told apart by their order.
        """
        place = f"{outer}:{tool}:{digest(arguments)}"
        number = next(self._asked.setdefault(place, count(1)))
        return str(uuid5(UUID(outer), f"{place}#{number}"))


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step whose body is running in this context."""

    name: str
    key: str
    effect: ToolEffect
    idempotency_key: str
    inner: InnerCalls = field(default_factory=InnerCalls)


_current: ContextVar[CurrentStep | None] = ContextVar("nrllm_current_step", default=None)

# The steps in whose bodies the segment on the process's main thread is now.
_on_main_thread: list[CurrentStep] = []


def current_step() -> CurrentStep | None:
    return _current.get()


def idempotency_key() -> str:
    """The key of the tool call that is running: the same on every attempt, different between calls.

    In a tool of an agent that runs inside a tool it is made from the outer call's key, the inner
    tool's name and its arguments.

    Send it to the destination (`Idempotency-Key`, `Message-ID`, ...), so that it can tell a
    repetition from a second request.

    Raises:
        LookupError: no tool of a durable run is running here.
    """
    step = _current.get()
    if step is None:
        raise LookupError("idempotency_key() is known only inside a tool of a durable run")
    return step.idempotency_key


@contextmanager
def in_flight(step: CurrentStep) -> Generator[None]:
    """Mark the body of a step, also for threads that don't know of which step they are a part."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _on_main_thread.append(step)
    try:
        yield
    finally:
        _on_main_thread.remove(step)


def steps_on_main_thread() -> tuple[CurrentStep, ...]:
    return tuple(_on_main_thread)


@contextmanager
def entered(step: CurrentStep) -> Generator[None]:
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)
