"""What the commands take from the command line, read and judged."""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError


def positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise ArgumentTypeError(f"{text} is not above zero")
    return number


def positive_seconds(text: str) -> float:
    seconds = not_negative_seconds(text)
    if seconds == 0:
        raise ArgumentTypeError(f"{text} is not above zero")
    return seconds


def not_negative_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise ArgumentTypeError(f"{text} is not a number of seconds, zero or above")
    return seconds


def json_value(argument: str | None) -> Any:
    """Read a JSON value: given as it is, as `@file`, or as `-` for standard input.

    Raises:
        CommandError: the file can't be read, or the text is not JSON.
    """
    if argument is None:
        return None
    source, text = _read(argument)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{source} is not JSON: {error}") from error


def _read(argument: str) -> tuple[str, str]:
    if argument == "-":
        return "standard input", sys.stdin.read()
    if not argument.startswith("@"):
        return "the argument", argument
    try:
        return argument[1:], Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(f"{argument[1:]} can't be read: {error}") from error
