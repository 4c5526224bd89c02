"""Execute one segment of a run in this process, and die where the test says.

    python -m tests.nrllm.worker UUID LOG [POINT KEY]

POINT is `before_ask`, `after_ask`, `before_stamp`, `after_stamp`, `in_body`, `in_stream`,
`in_verify`, `before_record` or `after_record` of the step with this key: there the process kills itself, as
nothing else could (SIGKILL). Bodies and events are written to LOG, a line each.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import django


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(uuid: str, log: str, point: str = "", key: str = "") -> None:
    django.setup()
    from agentruns.tasks import execute
    from agentruns.testing.boundaries import Arrival, Point, watched
    from tests.nrllm import parked_agent
    from tests.nrllm.long_agent import register

    def reached(arrival: Arrival) -> None:
        # In its body the agent dies by itself, after it has written down that it is there.
        here = arrival.call is not None and (point, key) == (arrival.point, arrival.call.key)
        if here and arrival.point is not Point.IN_BODY:
            die()

    parked_agent.register(Path(log))
    register(
        Path(log),
        die_in="verify" if point == "in_verify" else key if point == "in_body" else "",
        die_after_event_of=key if point == "in_stream" else "",
    )
    with watched(reached):
        execute(uuid)


if __name__ == "__main__":
    main(*sys.argv[1:])
