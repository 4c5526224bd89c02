"""The independent witness of crash tests, a process of its own.

What a killed process says about itself, and what the database says about its run, is what a crash
test puts to the proof; so neither may be the judge. The bodies of steps report to this process, and
wait here at the points at which a test wants to find them.

    python -m agentruns.testing.recorder [--port PORT] [--log FILE]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentruns.testing.json_http import JsonServer, Reply, Request, serve
from agentruns.testing.jsonl import append_line


@dataclass
class Arming:
    times: int = 1
    skip: int = 0
    block: bool = True
    answer: Any = None

    def acts(self) -> bool:
        """Count one arrival; return whether it is one to act on."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times == 0:
            return False
        self.times -= 1
        return True


@dataclass
class Arrival:
    pid: int
    released: bool = False


@dataclass
class Recorder:
    log: Path | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    effects: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    armed: dict[str, Arming] = field(default_factory=dict)
    arrivals: defaultdict[str, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add_body(self, request: Request) -> Reply:
        entry = {**request.body, "at": time.time()}
        with self.changed:
            if self.log is not None:
                append_line(self.log, entry)
            self.bodies.append(entry)
            self.changed.notify_all()
        return Reply({})

    def list_bodies(self, request: Request) -> Reply:
        return self.found(self.bodies, request)

    def add_effect(self, request: Request) -> Reply:
        with self.changed:
            self.effects.append({**request.body, "at": time.time()})
        return Reply({})

    def list_effects(self, request: Request) -> Reply:
        return self.found(self.effects, request)

    def add_point(self, request: Request) -> Reply:
        with self.changed:
            self.points.append(request.body)
        return Reply({})

    def list_points(self, request: Request) -> Reply:
        return self.found(self.points, request)

    def found(self, entries: list[dict[str, Any]], request: Request) -> Reply:
        """Those entries that have what the query asks for, in their order."""
        wanted = request.query.items()
        with self.changed:
            return Reply(
                [e for e in entries if all(str(e.get(name)) == value for name, value in wanted)]
            )

    def arm(self, request: Request) -> Reply:
        with self.changed:
            self.armed[request.argument] = Arming(**request.body)
        return Reply({})

    def hold(self, request: Request) -> Reply:
        with self.changed:
            arming = self.armed.get(request.argument)
            if arming is None or not arming.acts():
                return Reply({"answer": None})
            arrival = Arrival(pid=request.body["pid"], released=not arming.block)
            self.arrivals[request.argument].append(arrival)
            self.changed.notify_all()
            self.changed.wait_for(lambda: arrival.released)
            return Reply({"answer": arming.answer})

    def reached(self, request: Request) -> Reply:
        number = int(request.query.get("arrival", 1))
        with self.changed:
            arrivals = self.arrivals[request.argument]
            if not self.changed.wait_for(lambda: len(arrivals) >= number, request.timeout):
                return Reply({"error": f"reached {len(arrivals)} times, not {number}"}, 504)
            return Reply({"pid": arrivals[number - 1].pid})

    def count_arrivals(self, request: Request) -> Reply:
        with self.changed:
            return Reply({"count": len(self.arrivals[request.argument])})

    def release(self, request: Request) -> Reply:
        with self.changed:
            self.armed.pop(request.argument, None)
            self.let_go(self.arrivals[request.argument])
        return Reply({})

    def reset(self, request: Request) -> Reply:
        with self.changed:
            self.armed.clear()
            for arrivals in self.arrivals.values():
                self.let_go(arrivals)
            self.arrivals.clear()
            self.bodies.clear()
            self.effects.clear()
            self.points.clear()
        return Reply({})

    def let_go(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            arrival.released = True
        self.changed.notify_all()


def routes(recorder: Recorder) -> dict[str, Any]:
    return {
        "POST bodies": recorder.add_body,
        "GET bodies": recorder.list_bodies,
        "POST effects": recorder.add_effect,
        "GET effects": recorder.list_effects,
        "POST points": recorder.add_point,
        "GET points": recorder.list_points,
        "POST arm": recorder.arm,
        "POST hold": recorder.hold,
        "GET reached": recorder.reached,
        "GET arrivals": recorder.count_arrivals,
        "POST release": recorder.release,
        "POST reset": recorder.reset,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Count bodies and hold processes at points.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="append each body to this file")
    parser.add_argument("--exit-with-stdin", action="store_true")
    options = parser.parse_args()
    server = JsonServer(routes(Recorder(log=options.log)), options.port)
    serve(server, exit_with_stdin=options.exit_with_stdin)


if __name__ == "__main__":
    main()
