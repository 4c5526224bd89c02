from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError

USAGE = 2


class UsageError(CommandError):
    """The command line is wrong: nothing was tried."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=USAGE)


def refuse_without(options: dict[str, Any], names: Iterable[str], *, what: str) -> None:
    """Refuse a command line that lacks options which only some of a command's uses need.

    Raises:
        UsageError: names them.
    """
    missing = [f"--{name}" for name in names if not (options[name] or "").strip()]
    if missing:
        raise UsageError(f"{what} needs {', '.join(missing)}")
