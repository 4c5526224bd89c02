"""Fork processes that execute one segment of a run each, and die where the test says.

    python -m tests.nrllm.worker

For each line of standard input, `["UUID", "LOG", "POINT", "KEY"]` or without the latter two, it prints the
exit code of such a process, negative for a signal. POINT is `before_ask`, `after_ask`, `before_stamp`, `after_stamp`, `in_body`, `in_stream`,
`in_verify`, `before_record` or `after_record` of the step with this key: there the process kills itself, as
nothing else could (SIGKILL). Bodies and events are written to LOG, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import django

SECONDS = 120


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def serve() -> None:
    django.setup()
    from agentruns.testing.workers import start_worker

    import_module("tests.nrllm.long_agent")
    import_module("tests.nrllm.parked_agent")
    for line in sys.stdin:
        uuid, log, *where = json.loads(line)
        worker = start_worker(lambda: work(uuid, Path(log), *where), Path(f"{log}.said"))  # noqa: B023
        status = worker.wait(SECONDS)
        if status is None:
            worker.kill()
        print("null" if status is None else os.waitstatus_to_exitcode(status), flush=True)


def work(uuid: str, log: Path, point: str = "", key: str = "") -> None:
    from agentruns.tasks import execute
    from agentruns.testing.boundaries import Arrival, Point, watched
    from tests.nrllm import long_agent, parked_agent

    def reached(arrival: Arrival) -> None:
        # In its body the agent dies by itself, after it has written down that it is there.
        here = arrival.call is not None and (point, key) == (arrival.point, arrival.call.key)
        if here and arrival.point is not Point.IN_BODY:
            die()

    parked_agent.register(log)
    long_agent.register(
        log,
        die_in="verify" if point == "in_verify" else key if point == "in_body" else "",
        die_after_event_of=key if point == "in_stream" else "",
    )
    with watched(reached):
        execute(uuid)


if __name__ == "__main__":
    serve()
