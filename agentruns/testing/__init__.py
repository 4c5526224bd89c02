"""For the test suites of applications; docs/testing.md shows each of these in use.

Nothing here is imported by the product, and nothing here can be switched on from outside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bodies import counted_bodies as counted_bodies
    from .exercise import CrashCase as CrashCase
    from .exercise import answering as answering
    from .invariants import Body as Body
    from .invariants import assert_at_most_once as assert_at_most_once
    from .kit import NothingToCrash as NothingToCrash
    from .kit import crash_agent_run as crash_agent_run
    from .report import CrashReport as CrashReport
    from .reporting import report_effect as report_effect
    from .settling import LeaseClock as LeaseClock
    from .settling import NotSettled as NotSettled
    from .settling import run_until_settled as run_until_settled

# Looked up on first use: the recorder, a process without Django, is a module of this package.
_HOMES = {
    "Body": "invariants",
    "CrashCase": "exercise",
    "CrashReport": "report",
    "LeaseClock": "settling",
    "NotSettled": "settling",
    "NothingToCrash": "kit",
    "answering": "exercise",
    "assert_at_most_once": "invariants",
    "counted_bodies": "bodies",
    "crash_agent_run": "kit",
    "report_effect": "reporting",
    "run_until_settled": "settling",
}

__all__ = [
    "Body",
    "CrashCase",
    "CrashReport",
    "LeaseClock",
    "NotSettled",
    "NothingToCrash",
    "answering",
    "assert_at_most_once",
    "counted_bodies",
    "crash_agent_run",
    "report_effect",
    "run_until_settled",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
