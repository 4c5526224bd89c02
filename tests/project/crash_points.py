"""Points around the stamp, the record and the end at which a test may find a worker, and kill it.

Each is `POINT:STEP`, such as `after_stamp:write`, or a run's `after_complete`; nobody waits at a point
that is not armed.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

from django.db import OperationalError

from agentruns.testing.boundaries import Arrival, Point, watched
from tests.harness.database import end_own_connection

from .bodies import recorder

BEFORE = frozenset({Point.BEFORE_STAMP, Point.BEFORE_RECORD})
OTHERS = frozenset({Point.AFTER_STAMP, Point.IN_RECORD, Point.AFTER_RECORD, Point.AFTER_COMPLETE})
INSTALLED = ExitStack()


def install() -> None:
    """Hold this process at these points from now on."""
    INSTALLED.enter_context(watched(hold))


def hold(arrival: Arrival) -> None:
    if arrival.point in OTHERS:
        ask_recorder(arrival)
    elif arrival.point in BEFORE:
        with suppress(OperationalError):  # the statements that follow find out for themselves
            ask_recorder(arrival)


def ask_recorder(arrival: Arrival) -> None:
    witness, call = recorder(), arrival.call
    if witness is None:
        return
    name = str(arrival.point) if call is None else f"{arrival.point}:{call.name}"
    if witness.hold(name) == "lose_connection":
        end_own_connection()
