from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agentruns.enums import ToolEffect


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step whose body is running in this context."""

    name: str
    key: str
    effect: ToolEffect
    idempotency_key: str


_current: ContextVar[CurrentStep | None] = ContextVar("nrllm_current_step", default=None)


def current_step() -> CurrentStep | None:
    return _current.get()


def idempotency_key() -> str:
    """The key of the tool call that is running: the same on every attempt, different between calls.

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
def entered(step: CurrentStep) -> Generator[None]:
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)
