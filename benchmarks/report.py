"""The machine and the tables, for docs/performance.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

SERVER_SETTINGS = ("server_version", "shared_buffers", "synchronous_commit", "fsync")
Rows = list[dict[str, Any]]


def describe(prepared: bool) -> dict[str, Any]:
    """What the figures depend on. No names of hosts or people."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        server = {
            name: (connection.execute(f"SHOW {name}").fetchone() or [""])[0]
            for name in SERVER_SETTINGS
        }
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(os.getloadavg()[0], 1)],
        "python": platform.python_version(),
        "postgresql": server,
        "prepared statements": prepared,
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def tables(result: dict[str, Any]) -> str:
    return "\n".join(lines(result))


def lines(result: dict[str, Any]) -> Iterator[str]:
    yield from machine_lines(result["machine"])
    for size, rows in result["sizes"].items():
        timed, planned = having(rows, "processes"), having(rows, "pages")
        yield from section(f"{int(size):,} runs in the table", TIMED, map(timed_row, timed))
        yield from section("", PLANS, map(plan_row, planned))
    yield from section("As the tables grow", growth_head(result), growth(result))
    everything = [row for rows in result["sizes"].values() for row in rows]
    yield from section("Heap-only updates", HEAP_ONLY, map(heap_row, having(everything, "share")))
    latencies = map(latency_row, having(everything, "broker"))
    yield from section("From enqueue to the start of the body", LATENCY, latencies)
    rates = map(throughput_row, having(everything, "workers"))
    yield from section("Runs a second, by workers", THROUGHPUT, rates)


def machine_lines(machine: dict[str, Any]) -> Iterator[str]:
    server = ", ".join(f"{name} {value}" for name, value in machine["postgresql"].items())
    prepared = "on" if machine["prepared statements"] else "off"
    load = " at the beginning, ".join(str(load) for load in machine["load"])
    yield f"{machine['processor']}, {machine['cores']} cores; load {load} at the end."
    yield f"Python {machine['python']}; prepared statements: {prepared}; PostgreSQL: {server}."


def having(rows: Rows, key: str) -> Rows:
    return [row for row in rows if key in row]


def section(title: str, head: tuple[str, ...], rows: Iterator[str]) -> Iterator[str]:
    """A table under its title; nothing where it has no row."""
    told = list(rows)
    if told:
        yield from ("", f"### {title}") if title else ()
        yield from ("", *head, *told)


TIMED = (
    "| what | processes | | us each: median (quartiles) | a second | times raw |",
    "| --- | ---: | --- | ---: | ---: | ---: |",
)
PLANS = (
    "| plan | pages | rows read | scans of a whole table |",
    "| --- | ---: | ---: | --- |",
)
HEAP_ONLY = ("| what | updates of runs | of these heap-only |", "| --- | ---: | ---: |")
LATENCY = (
    "| queue | what | ms: median (quartiles) | times an empty task |",
    "| --- | --- | ---: | ---: |",
)
THROUGHPUT = (
    "| runs with three | workers | a second: median (quartiles) | times one worker |",
    "| --- | ---: | ---: | ---: |",
)


def told(values: dict[str, float], digits: int, divisor: float = 1) -> str:
    low, middle, high = (f"{values[name] / divisor:.{digits}f}" for name in ("q1", "median", "q3"))
    return f"{middle} ({low} to {high})"


def timed_row(row: dict[str, Any]) -> str:
    beside = told(row["ratio"], 2) if row.get("ratio") else ""
    beside = row.get("said", beside)
    return (
        f"| {named(row)} | {row['processes']} | {row['contender']} | "
        f"{told(row['microseconds'], 0)} | {row['per_second']} | {beside} |"
    )


def plan_row(row: dict[str, Any]) -> str:
    scanned = ", ".join(row["scanned"]) or "none"
    return f"| {row['plan']} | {row['pages']} | {row['rows_read']} | {scanned} |"


def heap_row(row: dict[str, Any]) -> str:
    return f"| {row['heap_only']} | {row['updates']} | {row['share']:.1%} |"


def latency_row(row: dict[str, Any]) -> str:
    ratio = "" if row["times_bare"] is None else f"{row['times_bare']}"
    took = told(row["microseconds"], 1, 1000)
    return f"| {row['broker']} | {row['contender']} | {took} | {ratio} |"


def throughput_row(row: dict[str, Any]) -> str:
    rate, ratio = told(row["runs_per_second"], 1), told(row["times_one"], 2)
    return f"| {row['contender']} | {row['workers']} | {rate} | {ratio} |"


def growth_head(result: dict[str, Any]) -> tuple[str, ...]:
    sizes = [f"{int(size):,} runs" for size in result["sizes"]]
    return (
        f"| times raw, one process | | {' | '.join(sizes)} |",
        f"| --- | --- | {' | '.join('---:' for _size in sizes)} |",
    )


def growth(result: dict[str, Any]) -> Iterator[str]:
    """The ratios at each size of the table: flat where the plans are."""
    if len(result["sizes"]) < 2:
        return
    found: dict[tuple[str, str], list[str]] = {}
    for rows in result["sizes"].values():
        for row in having(rows, "ratio"):
            if row["processes"] == 1 and row["ratio"]:
                ratios = found.setdefault((named(row), row["contender"]), [])
                ratios.append(told(row["ratio"], 2))
    for (name, contender), ratios in found.items():
        if len(ratios) == len(result["sizes"]):
            yield f"| {name} | {contender} | {' | '.join(ratios)} |"


def named(row: dict[str, Any]) -> str:
    name: str = row["benchmark"]
    return name.replace("_", " ")
