from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .boundaries import Arrival, Point, watched
from .invariants import Body


@contextmanager
def counted_bodies() -> Iterator[list[Body]]:
    """Count, for the time of a `with` block, the bodies that steps in this process start."""
    seen: list[Body] = []

    def reached(arrival: Arrival) -> None:
        call = arrival.call
        if arrival.point is Point.IN_BODY and call is not None:
            seen.append(Body(call.key, call.name, str(call.effect), arrival.idempotency_key))

    with watched(reached):
        yield seen
