"""What the commands take from the command line, read and judged."""

from __future__ import annotations

import json
import math
import shlex
import sys
from argparse import ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..fields import typed_json
from .usage import UsageError


def positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise ArgumentTypeError(f"{text} is not above zero")
    return number


SECONDS_OF_A_CENTURY = 100 * 366 * 86_400


def positive_seconds(text: str) -> float:
    return _above_zero(text, _number(text, "seconds", SECONDS_OF_A_CENTURY))


def positive_days(text: str) -> float:
    return _above_zero(text, _number(text, "days", SECONDS_OF_A_CENTURY / 86_400))


def not_negative_seconds(text: str) -> float:
    return _number(text, "seconds", SECONDS_OF_A_CENTURY)


def _number(text: str, unit: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number of {unit}") from None
    if not math.isfinite(number) or number < 0:
        raise ArgumentTypeError(f"{text} is not a number of {unit}, zero or above")
    if number > most:
        raise ArgumentTypeError(f"{text} {unit} are more than a hundred years")
    return number


def _above_zero(text: str, number: float) -> float:
    if number == 0:
        raise ArgumentTypeError(f"{text} is not above zero")
    return number


# How a shell is given JSON: its quotes are not those of a text in JSON.
JSON_HELP = "JSON (a text needs its own quotes: '\"sent\"'), @file, or - for standard input"

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def length_of_time(text: str) -> timedelta:
    """A number of seconds, or one with a unit: 90, 90s, 15m, 1h, 2d."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        return timedelta(seconds=not_negative_seconds(number) * UNITS[unit])
    except (ArgumentTypeError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is no length of time: a number of seconds, or one with a unit (s, m, h or d), "
            "such as 90, 90s, 15m, 1h, 2d"
        ) from None


def json_value(argument: str | None) -> Any:
    """Read a JSON value: given as it is, as `@file`, or as `-` for standard input.

    Raises:
        UsageError: the file can't be read, or the text is not JSON.
    """
    if argument is None:
        return None
    source, text = _read(argument)
    try:
        return typed_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON: {error}{_hint(argument)}") from error


def _hint(argument: str) -> str:
    """How a shell is told a text, which is what is meant most often."""
    if argument == "-" or argument.startswith("@") or len(argument) > 60:
        return ""
    return f"; a text stands in double quotes: {shlex.quote(json.dumps(argument))}"


def _read(argument: str) -> tuple[str, str]:
    if argument == "-":
        return "standard input", sys.stdin.read()
    if not argument.startswith("@"):
        return "the argument", argument
    try:
        return argument[1:], Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{argument[1:]} can't be read: {error}") from error
