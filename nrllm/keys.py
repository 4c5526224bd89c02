from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic_core import to_jsonable_python

MAX_KEY_LENGTH = 120


class StepKeys:
    """The keys of one segment's steps. A replay that takes the same path makes the same keys.

    They are persisted: a change strands every run in flight (a test pins them). What may be asked
    for twice at one place is numbered in the order of asking; a tool call is not, so that the same
    call can't start twice. `keyed` makes of a plain digest the one that the run's journal has.
    """

    def __init__(self, keyed: Callable[[str], str] = str) -> None:
        self._keyed = keyed
        self._asked: Counter[str] = Counter()

    def tool(self, run_step: int, tool_call_id: str, *, approved: bool = False) -> str:
        return _fitting(f"tool:{run_step}:{tool_call_id}{':approved' if approved else ''}")

    def validation(self, run_step: int, tool_call_id: str, tool: str, *, approved: bool) -> str:
        return _fitting(
            f"validate:{run_step}:{tool_call_id}:{tool}{':approved' if approved else ''}"
        )

    def once(self, tool: str, arguments: Any, occurrence: int) -> str:
        return _fitting(f"once:{tool}:{self._keyed(digest(arguments))[:32]}{_suffix(occurrence)}")

    def numbered(self, kind: str, *place: object) -> str:
        base = ":".join([kind, *map(str, place)])
        self._asked[base] += 1
        return _fitting(f"{base}{_suffix(self._asked[base])}")


def _suffix(occurrence: int) -> str:
    return "" if occurrence == 1 else f"#{occurrence}"


def _fitting(key: str) -> str:
    if len(key) <= MAX_KEY_LENGTH:
        return key
    return f"{key[: MAX_KEY_LENGTH - 33]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def jsonable(value: Any) -> Any:
    """Reduce a value to JSON; what has no JSON form is named by its type, never by its address."""
    return to_jsonable_python(value, fallback=name_of_type, inf_nan_mode="constants")


def name_of_type(value: Any) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def digest(value: Any) -> str:
    """SHA-256 (hex) of a value's JSON with sorted keys: equal values have equal digests."""
    text = json.dumps(jsonable(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
