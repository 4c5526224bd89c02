from __future__ import annotations

import logging
import traceback
from typing import Any

from .conf import conf
from .raised import class_name, former_of, grouped_in, traceback_of
from .redaction import told

# In characters: what Python may print of an error, and what we do of the frames of one.
LONGEST = 50_000
LONGEST_FRAMES = 4_000
# Of an error's causes and of the errors in a group, those next to it.
MOST_ERRORS = 20


def log_error(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    error: BaseException,
    extra: dict[str, Any] | None = None,
) -> None:
    """Log with the traceback of `error`, which somebody else wrote: whatever it is, this returns.

    A logger is given the error itself, but where REDACT is set, where printing it fails, or where
    that takes pages; then it gets a text of ours.
    """
    plain = not conf.REDACT and is_printable(error)
    logger.log(
        level,
        message if plain else f"{message}\n%s",
        *args,
        *(() if plain else (told_traceback(error),)),
        # Not the error by itself: one that counts as false would be left out.
        exc_info=(type(error), error, traceback_of(error)) if plain else None,
        extra=extra,
        stacklevel=2,
    )


def is_printable(error: BaseException) -> bool:
    """Whether Python prints it with all that led to it, in a bounded text."""
    try:
        return len("".join(traceback.format_exception(error))) <= LONGEST
    except BaseException:  # whatever its class raises: it ends nothing here
        return False


def told_traceback(error: BaseException) -> str:
    """The traceback of an error and of what led to it, each with its text as a row would keep it.

    Frames show lines of code, never values. Bounded, however long the chain or large the group.
    """
    errors, more = nearest(error)
    parts = ["... and errors before these, or beside them"] if more else []
    parts += [f"{frames_of(one)}{class_name(one)}: {told(one)}" for one in reversed(errors)]
    return "\n\n".join(parts)


def nearest(error: BaseException) -> tuple[list[BaseException], bool]:
    """An error, then its cause and those that it groups, then theirs; and whether there are more."""
    found, seen = [error], {id(error)}
    for one in found:
        for former in (former_of(one), *grouped_in(one)):
            if former is None or id(former) in seen:
                continue
            if len(found) == MOST_ERRORS:
                return found, True
            seen.add(id(former))
            found.append(former)
    return found, False


def frames_of(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(traceback_of(error)))
    half = LONGEST_FRAMES // 2
    return frames if len(frames) <= LONGEST_FRAMES else f"{frames[:half]}\n...\n{frames[-half:]}"
