"""The bodies of steps: what they may be, where they run, and how they ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from .enums import StepOutcome
from .exceptions import EffectLanded, EffectNotApplied, PayloadError
from .fields import Payload
from .models import StepCall
from .models.step import Ending
from .redaction import told

Body = Callable[[str], Any]

enclosing_call: ContextVar[StepCall | None] = ContextVar("agentruns_inside_step", default=None)


def refuse_body(name: str, body: Body) -> None:
    """Refuse a body that could not start: its fence would stand for nothing.

    Raises:
        TypeError: it is no function, takes no key, or would only make a generator.
    """
    if not callable(body):
        raise TypeError(
            f"step {name!r} has a body of type {type(body).__name__}: give it a function that acts, "
            "which is called with the idempotency key"
        )
    if inspect.isfunction(body) and not _takes_key(body):
        raise TypeError(
            f"the body of step {name!r} takes no argument: it is called with the idempotency key"
        )
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"step {name!r} has a generator for a body: give it a function that acts")


def _takes_key(function: FunctionType) -> bool:
    code = function.__code__
    return bool(code.co_argcount or code.co_flags & inspect.CO_VARARGS)


@contextmanager
def inside(call: StepCall) -> Iterator[None]:
    token = enclosing_call.set(call)
    try:
        yield
    finally:
        enclosing_call.reset(token)


def ending_said(said: EffectNotApplied | EffectLanded) -> Ending:
    if isinstance(said, EffectLanded):
        return Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, told(said))
    try:
        return Ending(StepOutcome.EFFECT_NOT_APPLIED, Payload.of(said.answer))
    except PayloadError as error:
        return Ending(StepOutcome.EFFECT_NOT_APPLIED, None, told(error))


def ending_returned(value: Any) -> Ending:
    """The ending of a write that returned: it landed, whether or not its result can be kept."""
    try:
        return Ending(StepOutcome.RETURNED, Payload.of(value))
    except PayloadError as error:
        return Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, told(error))
