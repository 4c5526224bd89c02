"""The bare queue's task: it says that it has arrived."""

from __future__ import annotations

from .arrivals import report_arrival

EMPTY = "benchmarks.project.tasks.empty"


def empty() -> None:
    report_arrival()
