"""How long it takes from enqueue to the start of the body, through a real queue and its real worker.

Beside it, in turn, an empty task through the same queue and worker: the queue's own share.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django

from .measure import spread
from .project.arrivals import Arrivals

# What each broker needs, and the process that works on it.
NEEDS = {"table": "DATABASE_URL", "redis": "REDIS_URL", "rabbitmq": "RABBITMQ_URL"}
NAMES = {
    "table": "django-q2, its table",
    "redis": "django-q2, Redis",
    "rabbitmq": "Celery, RabbitMQ",
}
CLUSTER = ["manage.py", "qcluster"]
WORKERS = {"table": CLUSTER, "redis": CLUSTER, "rabbitmq": ["-m", "benchmarks.project.celery"]}
ROOT = Path(__file__).resolve().parent.parent
EMPTY, RUN = "an empty task", "a run"
START_SECONDS = 120
ARRIVAL_SECONDS = 60

Send = Callable[[], object]


def queue_latency(*, rounds: int) -> list[dict[str, Any]]:
    """The latency through each broker that is there, each in a process that is configured for it."""
    found: list[dict[str, Any]] = []
    for broker, variable in NEEDS.items():
        if os.environ.get(variable):
            told = subprocess.run(
                [sys.executable, "-m", "benchmarks.latency", str(rounds)],
                cwd=ROOT,
                env={**os.environ, "BENCHMARK_BROKER": broker},
                stdout=subprocess.PIPE,
                check=True,
            )
            found += json.loads(told.stdout)
    return found


def measured(broker: str, rounds: int) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {EMPTY: [], RUN: []}
    with tempfile.TemporaryDirectory() as name, Arrivals(Path(name)) as arrivals:
        senders = {EMPTY: empty_through(broker), RUN: enqueue_a_run}
        with worker(broker, Path(name) / "log"):
            wait_for(arrivals, senders[EMPTY])
            for number in range(rounds + 1):
                for contender in random.sample(sorted(times), 2):
                    took = one(arrivals, senders[contender])
                    if number:
                        times[contender].append(took * 1e6)
    pairs = zip(times[RUN], times[EMPTY], strict=True)
    added = spread([ours - bare for ours, bare in pairs], 1)
    return [
        {
            "benchmark": "queue_latency",
            "broker": NAMES[broker],
            "contender": contender,
            "microseconds": spread(found, 1),
            "added": added if contender == RUN else None,
            "times_bare": round(
                spread(times[RUN], 1)["median"] / spread(times[EMPTY], 1)["median"], 2
            )
            if contender == RUN
            else None,
        }
        for contender, found in times.items()
    ]


def one(arrivals: Arrivals, send: Send) -> float:
    sent_at = time.monotonic()
    send()
    return arrivals.next(ARRIVAL_SECONDS) - sent_at


def wait_for(arrivals: Arrivals, send: Send) -> None:
    """Until the worker has done one thing, it is not counted."""
    send()
    arrivals.next(START_SECONDS)


def empty_through(broker: str) -> Send:
    from .project.tasks import EMPTY as task

    if broker == "rabbitmq":
        from .project.celery import app

        app.set_current()
        return lambda: app.send_task(task, ignore_result=True, retry=False)
    from django_q.brokers import get_broker
    from django_q.tasks import async_task

    to = get_broker()
    to.purge_queue()
    return lambda: async_task(task, save=False, broker=to)


def enqueue_a_run() -> None:
    from agentruns.api import enqueue

    enqueue("arrives")


@contextmanager
def worker(broker: str, log: Path) -> Iterator[None]:
    """A worker's processes, in a group of their own, which is ended as a whole."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *WORKERS[broker]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    except TimeoutError:
        print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def main() -> None:
    django.setup()
    rows = measured(os.environ["BENCHMARK_BROKER"], int(sys.argv[1]))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
