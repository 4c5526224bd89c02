"""Runs a second by number of workers: processes in groups of their own, which stand for hosts.

Each has its own connections, and executes queued runs from claim to completion as a queue's worker
does; what the queue itself adds is the latency's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .measure import Contenders, Member, spread, time_together

# What each of the three steps of a run takes, in seconds: a body that returns at once shows what the
# machine can do; one that waits, as for a model, what more workers add.
STEPS = {"steps that return at once": 0.0, "steps of 50 ms": 0.05}
WORKERS = (1, 2, 4, 8)


def throughput(*, rounds: int, runs: int) -> list[dict[str, Any]]:
    """The rate of each number of workers, and its ratio to that of one within the same round."""
    rates: dict[tuple[str, int], list[float]] = {}
    crew = [Member(contenders) for _ in range(max(WORKERS))]
    try:
        for member in crew:
            member.names()
        for number in range(rounds + 1):
            for contender in STEPS:
                for workers in WORKERS:
                    seconds = time_together(crew[:workers], contender, runs)
                    if number:
                        rates.setdefault((contender, workers), []).append(workers * runs / seconds)
    finally:
        for member in crew:
            member.stop()
    return [
        {
            "benchmark": "throughput",
            "workers": workers,
            "contender": contender,
            "runs_per_second": spread(found, 1),
            "times_one": spread(over_one(found, rates[contender, 1]), 2),
        }
        for (contender, workers), found in rates.items()
    ]


def over_one(rates: list[float], of_one: list[float]) -> list[float]:
    return [rate / one for rate, one in zip(rates, of_one, strict=True)]


def contenders() -> Contenders:
    os.setsid()
    return {name: executing(seconds) for name, seconds in STEPS.items()}


def executing(seconds: float) -> Callable[[int], Callable[[], object]]:
    from agentruns import hotrun
    from agentruns.fields import Payload
    from agentruns.tasks import execute

    def prepare(runs: int) -> Callable[[], object]:
        request = Payload.of(seconds)
        queued = [str(hotrun.enqueue("three steps", request)[0].uuid) for _ in range(runs)]

        def act() -> None:
            for uuid in queued:
                execute(uuid)

        return act

    return prepare
