"""Measure what a durable step, and what is around it, costs: beside raw psycopg, and as tables grow.

It needs PostgreSQL: in the server that DATABASE_URL names, it makes a database of its own, and drops
it in the end. Every figure is the median of rounds in which the contenders take turns; on a shared
machine the times are noisy and the ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import django

from .database import fill, own_database
from .measure import Contenders, compare
from .page import FIGURES, write
from .report import describe, tables

Rows = list[dict[str, Any]]


def main() -> None:
    options = parse()
    if not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        sys.exit("DATABASE_URL names no PostgreSQL server.")
    os.environ["BENCHMARK_PREPARE"] = str(int(options.prepare))
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    with own_database():
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0, interactive=False)
        connections.close_all()
        result: dict[str, Any] = {"machine": describe(options.prepare), "sizes": {}}
        for size in sorted(options.rows):
            fill(size)
            options.size = size
            result["sizes"][str(size)] = list(measured(options))
            connections.close_all()
    result["machine"]["load"].append(round(os.getloadavg()[0], 1))
    if options.write:
        FIGURES.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write(result)
    print(json.dumps(result, indent=1) if options.json else tables(result))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000], help="sizes of the table")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--operations", type=int, default=20, help="in a round, by each process")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--stale",
        type=int,
        help="runs for the reaper (default: a tenth of a table, 10 to 100 thousand)",
    )
    parser.add_argument("--no-prepare", dest="prepare", action="store_false")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the figures, and put them into docs/performance.md",
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from django.db import connections

    grown = options.size > min(options.rows)
    for name in options.names or NAMES:
        if grown and name in ONCE:
            continue
        say(f"{name} at {options.size} rows")
        yield from NAMES[name](options)
        connections.close_all()  # what comes next forks


def side_by_side(module: str, name: str) -> Callable[[argparse.Namespace], Rows]:
    def measure(options: argparse.Namespace) -> Rows:
        found: Rows = []
        # What grows with the table does so for one process, too.
        grown = options.size > min(options.rows)
        for processes in options.processes[:1] if grown else options.processes:
            comparison = compare(
                name,
                lambda: contenders(module, name, alone=processes == 1),  # noqa: B023
                operations=options.operations,
                rounds=options.rounds,
                processes=processes,
            )
            found += comparison.rows()
        return found

    return measure


def contenders(module: str, name: str, *, alone: bool) -> Contenders:
    from importlib import import_module

    made: Contenders = getattr(import_module(f"benchmarks.{module}"), name)()
    if alone and name in ("write_step", "read_step"):
        from .beside import dbos_steps
        from .steps import RESULT

        made |= dbos_steps(RESULT)
    return made


def reap(options: argparse.Namespace) -> Rows:
    from .sweeping import reaper

    stale = options.stale or min(max(options.size // 10, 10_000), 100_000)
    return reaper(stale=stale, rounds=max(3, options.rounds // 3))


def plan(options: argparse.Namespace) -> Rows:
    from .database import clear, connect
    from .worker_plans import plans

    with connect() as connection:
        clear(connection)  # a sweep reads every running run, also those that a measurement left
    return plans()


def latency(options: argparse.Namespace) -> Rows:
    from .latency import queue_latency

    return queue_latency(rounds=2 * options.rounds)


def by_workers(options: argparse.Namespace) -> Rows:
    from .throughput import throughput

    return throughput(rounds=max(3, options.rounds // 3), runs=options.operations)


def heap(options: argparse.Namespace) -> Rows:
    from .heap_only import heap_only

    return heap_only()


NAMES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "write_step": side_by_side("steps", "write_step"),
    "read_step": side_by_side("steps", "read_step"),
    "renewal": side_by_side("steps", "renewal"),
    "enqueue": side_by_side("queue", "enqueue"),
    "claim": side_by_side("queue", "claim"),
    "settle": side_by_side("queue", "settle"),
    "replay": side_by_side("queue", "replay"),
    "reaper": reap,
    "plans": plan,
    "heap_only": heap,
    "queue_latency": latency,
    "throughput": by_workers,
}
# What does not hang on the size of the tables.
ONCE = frozenset({"heap_only", "queue_latency", "throughput"})


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
