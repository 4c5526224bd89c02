"""Contenders that do the same work, measured in turn on the same server, in rounds."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

# Prepares this many operations, and gives a function that does them: only that one is timed.
Prepare = Callable[[int], Callable[[], object]]
Contenders = dict[str, Prepare]

RAW = "raw"


@dataclass
class Comparison:
    """The time of an operation for each contender (in microseconds), round by round.

    The machine may be shared and noisy: what counts is the ratio of two contenders in one round.
    """

    name: str
    processes: int
    operations: int
    times: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, contender: str) -> list[float]:
        pairs = zip(self.times[contender], self.times[RAW], strict=True)
        return [ours / raw for ours, raw in pairs]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "benchmark": self.name,
                "processes": self.processes,
                "contender": contender,
                "microseconds": spread(times, 1),
                "per_second": round(1e6 / statistics.median(times)),
                "ratio": spread(self.ratios(contender), 2) if contender != RAW else None,
            }
            for contender, times in self.times.items()
        ]


def spread(values: list[float], digits: int) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "median": round(middle, digits),
        "q1": round(low, digits),
        "q3": round(high, digits),
    }


def compare(
    name: str,
    make: Callable[[], Contenders],
    *,
    operations: int,
    rounds: int,
    processes: int = 1,
) -> Comparison:
    """Have each contender do `operations` in each of `processes`, in turn, `rounds` times.

    `make` is called in each process. The first round warms up and is not counted.
    """
    result = Comparison(name, processes, operations)
    crew = [Member(make) for _ in range(processes)]
    try:
        names = crew[0].names()
        for member in crew[1:]:
            member.names()
        for number in range(rounds + 1):
            turn = names[number % len(names) :] + names[: number % len(names)]
            for contender in turn:
                seconds = time_together(crew, contender, operations)
                if number:
                    each = seconds / (operations * processes) * 1e6
                    result.times.setdefault(contender, []).append(each)
    finally:
        for member in crew:
            member.stop()
    result.times = {contender: result.times[contender] for contender in names}
    return result


def time_together(crew: list[Member], contender: str, operations: int) -> float:
    for member in crew:
        member.send((contender, operations))
    for member in crew:
        member.receive()
    began = time.perf_counter()
    for member in crew:
        member.send("go")
    for member in crew:
        member.receive()
    return time.perf_counter() - began


class Member:
    """A process with its own connections that does what it is told."""

    def __init__(self, make: Callable[[], Contenders]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(make, other), daemon=True)
        self._process.start()
        other.close()

    def names(self) -> list[str]:
        names: list[str] = self._pipe.recv()
        return names

    def send(self, message: object) -> None:
        self._pipe.send(message)

    def receive(self) -> None:
        self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(timeout=20)
        if self._process.is_alive():
            self._process.kill()


def serve(make: Callable[[], Contenders], pipe: Connection) -> None:
    contenders = make()
    pipe.send(list(contenders))
    while True:
        told = pipe.recv()
        if told is None:
            os._exit(0)  # whatever threads a contender has left
        contender, operations = told
        act = contenders[contender](operations)
        pipe.send("ready")
        pipe.recv()
        act()
        pipe.send("done")
