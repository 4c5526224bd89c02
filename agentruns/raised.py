"""Look at an exception of somebody else without calling any code of its class, which may fail or lie."""

from __future__ import annotations

from types import TracebackType
from typing import Any


def is_a(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether it is one of these: `isinstance` believes a `__class__` that the class itself gives."""
    return issubclass(type(error), kinds)


def class_name(value: object) -> str:
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def cause_of(error: BaseException) -> BaseException | None:
    cause: BaseException | None = _attribute(error, "__cause__")
    return cause


def former_of(error: BaseException) -> BaseException | None:
    """What led to this error: its cause, or what was being handled when it was raised."""
    cause = cause_of(error)
    if cause is not None or _attribute(error, "__suppress_context__"):
        return cause
    context: BaseException | None = _attribute(error, "__context__")
    return context


def traceback_of(error: BaseException) -> TracebackType | None:
    frames: TracebackType | None = _attribute(error, "__traceback__")
    return frames


def grouped_in(error: BaseException) -> tuple[BaseException, ...]:
    """The errors of a group; none where it is no group."""
    if not is_a(error, BaseExceptionGroup):
        return ()
    members: tuple[BaseException, ...] = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
    return members


def _attribute(error: BaseException, name: str) -> Any:
    return BaseException.__dict__[name].__get__(error)
