"""Every cell of the matrix, what must come of it, and why some can't occur."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from agentruns.enums import FENCED_EFFECTS, ToolEffect
from agentruns.testing.boundaries import Point


class Situation(StrEnum):
    """In which situation a worker is struck."""

    QUEUED = "queued"
    SYNCHRONOUS = "synchronous"
    APPROVED = "approved"
    RESOLVED = "resolved"
    VERIFIED = "verified"


class Signal(StrEnum):
    """What strikes it."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    STOP = "SIGSTOP"

    @property
    def number(self) -> signal.Signals:
        return signal.Signals[self.value]


ASKS = (
    Point.BEFORE_ASK, Point.IN_ASK, Point.AFTER_ASK,
    Point.BEFORE_PARK, Point.IN_PARK, Point.AFTER_PARK,
)  # fmt: skip
STAMPS = (Point.BEFORE_STAMP, Point.IN_STAMP, Point.AFTER_STAMP)
VERIFIES = (Point.BEFORE_ASKING, Point.AFTER_ASKING, Point.IN_VERDICT, Point.AFTER_VERDICT)
RECORDS = (Point.BEFORE_RECORD, Point.IN_RECORD)
# Where the row of the run is locked: in the body of a transactional write, it is not yet.
INSIDE = (Point.IN_ASK, Point.IN_PARK, Point.IN_STAMP, Point.IN_RECORD, Point.IN_COMPLETE,
          Point.IN_VERDICT)  # fmt: skip
OF_THE_STEP = (Point.IN_BODY, *RECORDS, Point.AFTER_RECORD, *STAMPS)

COMPLETED = "completed"
INTERRUPTED = "interrupted_write"
NOT_RETRYABLE = "not_retryable"


@dataclass(frozen=True, slots=True)
class Cell:
    effect: ToolEffect
    point: Point
    situation: Situation
    signal: Signal

    def __str__(self) -> str:
        return f"{self.effect} / {self.point} / {self.situation} / {self.signal}"

    @property
    def cant_occur(self) -> str:
        """Why there is no such cell; empty where there is one."""
        if self.point in STAMPS and self.effect not in FENCED_EFFECTS:
            return "it has no fence"
        if self.point in ASKS and self.situation is not Situation.APPROVED:
            return "nobody is asked for an approval"
        if self.point in VERIFIES and self.situation is not Situation.VERIFIED:
            return "no destination is asked"
        return ""

    @property
    def expected(self) -> str:
        """How the run ends: completed, or the reason for which it is dead-lettered."""
        # A final destination that is asked knows whether the write landed: the run goes on.
        if self.goes_on or self.situation is Situation.VERIFIED:
            return COMPLETED
        if self.fenced:
            return INTERRUPTED
        # Nobody waits for it any more, so it is executed no more.
        return NOT_RETRYABLE if self.situation is Situation.SYNCHRONOUS else COMPLETED

    @property
    def goes_on(self) -> bool:
        """Whether the worker that was struck brings the run further itself, or has done so."""
        if self.point is Point.AFTER_COMPLETE:
            return True
        if self.signal is Signal.STOP:
            return self.keeps_its_run and self.point is not Point.IN_STAMP
        # In a synchronous run, the signal is the business of the process that called.
        return self.signal is Signal.TERM and self.situation is not Situation.SYNCHRONOUS

    @property
    def keeps_its_run(self) -> bool:
        """A process that is stopped inside a transaction keeps the row locked: nobody takes it."""
        return self.point in INSIDE

    @property
    def fenced(self) -> bool:
        """Whether a write that must not be repeated stays in flight."""
        if self.effect is not ToolEffect.NON_IDEMPOTENT_WRITE:
            return False
        # Who was stopped inside the stamp commits it later, and does not trust its lease any more.
        stamps_late = self.signal is Signal.STOP and self.point is Point.IN_STAMP
        return stamps_late or self.point in (Point.AFTER_STAMP, Point.IN_BODY, *RECORDS)


def every_cell() -> Iterator[Cell]:
    for effect, point, situation, number in product(ToolEffect, Point, Situation, Signal):
        yield Cell(effect, point, situation, number)


def cells_to_run() -> list[Cell]:
    return [cell for cell in every_cell() if not cell.cant_occur]


def each_boundary_once() -> list[Cell]:
    """Every boundary of every effect, with SIGKILL in the first situation in which it occurs."""
    found: dict[tuple[ToolEffect, Point], Cell] = {}
    for cell in cells_to_run():
        found.setdefault((cell.effect, cell.point), cell)
    return list(found.values())


def quick_cells() -> list[Cell]:
    """One of each kind: each boundary once, and every situation and signal at the fence."""
    once = set(each_boundary_once())
    return [cell for cell in cells_to_run() if cell in once or is_at_the_fence(cell)]


def is_at_the_fence(cell: Cell) -> bool:
    """The signals meet each other's situations at two of its points only: each waits for a lease."""
    if cell.effect is not ToolEffect.NON_IDEMPOTENT_WRITE:
        return False
    if cell.situation is Situation.QUEUED or cell.signal is Signal.KILL:
        return cell.point in OF_THE_STEP
    return cell.point in (Point.AFTER_STAMP, Point.IN_BODY)
