"""What becomes of stale runs that the verdict can't tell apart."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from django.db.models.functions import Now

from .conf import conf
from .fields import Payload
from .models.stopping import (
    CANCEL_TIME,
    Stopped,
    after_stop,
    move_columns,
    ran_out,
    standing_fence,
)
from .verdict import Verdict, decide, is_executable_again

# Where the database puts in what only one run has, by its format().
SLOT = "%s"


class Attempt(IntEnum):
    """Stands for the attempt that each run of a kind has; a primary key is never negative."""

    STAMPED = -1
    IN_DOUBT = -2


class Kind(NamedTuple):
    """All that a verdict reads of a stale run."""

    mode: str
    requeues: int
    effect: str
    is_cancelled: bool
    is_stored: bool
    is_stamped: bool
    is_in_doubt: bool

    def fence(self) -> tuple[str, int | None]:
        return standing_fence(
            self.effect,
            Attempt.STAMPED if self.is_stamped else None,
            lambda: Attempt.IN_DOUBT if self.is_in_doubt else None,
        )

    def verdict(self) -> Verdict:
        return decide(
            fence=self.fence()[0],
            cancel_requested=self.is_cancelled,
            executable_again=is_executable_again(self.mode, has_request=self.is_stored),
            failure=None,
            requeue_count=self.requeues,
            max_requeues=conf.MAX_REQUEUES,
        )

    def end(self, verdict: Verdict, uniform: Callable[[float, float], float]) -> Stopped:
        return after_stop(
            verdict, self.requeues, self.fence(), error_message=ran_out(SLOT), uniform=uniform
        )


class Ruling(NamedTuple):
    """The verdict on a kind, and what it makes of its runs: each has its delay between these two."""

    verdict: Verdict
    soonest: Stopped
    latest: Stopped

    @classmethod
    def on(cls, kind: Kind) -> Ruling:
        verdict = kind.verdict()
        return cls(verdict, kind.end(verdict, min), kind.end(verdict, max))

    @property
    def columns(self) -> dict[str, Any]:
        return move_columns(self.soonest.status, self.soonest.columns)

    def row(self) -> dict[str, Any]:
        """What the database is told: the columns that it does not find itself, the event, the delay."""
        columns = self.columns
        return {
            **{name: value for name, value in columns.items() if not is_found(value)},
            "uncertain": self.soonest.uncertain_attempt is not None,
            "shortest_ms": _milliseconds(self.soonest),
            "longest_ms": _milliseconds(self.latest),
            "kind": self.soonest.kind,
            "data": template(self.data(SLOT)),
        }

    def data(self, delay_seconds: float | str) -> dict[str, Any]:
        """What its event says of a run that has this delay."""
        data = self.soonest.data
        return data if self.soonest.delay is None else {**data, "delay_seconds": delay_seconds}


def is_found(value: Any) -> bool:
    """Whether the database finds the value of this column."""
    return isinstance(value, Now) or value is CANCEL_TIME


def template(data: dict[str, Any], *, quoted: bool = False) -> str | None:
    """A payload's text for format(): a slot takes a number, or else, quoted, a text."""
    if not data:
        return None
    text = Payload.of(data).text.replace("%", "%%")
    return text.replace('"%%s"', '"%s"' if quoted else "%s")


def _milliseconds(end: Stopped) -> float:
    return end.delay.total_seconds() * 1000 if end.delay is not None else 0.0
