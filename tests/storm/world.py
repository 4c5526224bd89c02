"""The processes that the storm strikes: clusters, reapers, a PostgreSQL server, the recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

from agentruns.testing.client import RecorderClient
from script.postgres import PrivateServer
from tests.harness.environment import subprocess_environment
from tests.harness.qcluster import QCluster
from tests.servers.process import ROOT, Watchdog

T = TypeVar("T")

CLUSTERS, WORKERS, REAPERS = 2, 2, 2
PATIENCE_SECONDS = 60
AGENTRUNS = {
    # A worker that is paused is paused past it.
    "LEASE_SECONDS": 2.0,
    "HEARTBEAT_SECONDS": 0.4,
    "MAX_STEP_SECONDS": 10,
    "MAX_REQUEUES": 8,
    "RECORD_RETRY_SECONDS": 10,
    # The broker is emptied every few seconds: a pause that has doubled for minutes outlasts the storm.
    "WAKE_AGAIN_MAX_SECONDS": 5,
}


def persistently(function: Callable[[], T]) -> T:
    """Call it until the database lets it; it must bear being called again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return function()
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Reaper:
    """`reap_stale_agent_runs` as a process of its own, whose output goes to a file."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "reap_stale_agent_runs", "--every", "0.5"],
                cwd=ROOT,
                env=subprocess_environment(agentruns=AGENTRUNS),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.watchdog = Watchdog(self.process.pid)

    def kill(self) -> None:
        self.watchdog.dismiss()
        self.process.kill()
        self.process.wait()


class World:
    """Everything that runs; a service manager, too: what has ended is started again."""

    def __init__(self, folder: Path, server: PrivateServer, recorder: RecorderClient) -> None:
        self.folder, self.server, self.recorder = folder, server, recorder
        self.clusters: list[QCluster] = []
        self.reapers: list[Reaper] = []
        self.paused: dict[int, float] = {}
        self._started = 0

    def __enter__(self) -> World:
        self.keep_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.wake_up()
        for reaper in self.reapers:
            reaper.kill()
        for cluster in self.clusters:
            cluster.kill()

    def keep_up(self) -> None:
        """Start what is missing, as a service manager does."""
        for cluster in [each for each in self.clusters if each.process.poll() is not None]:
            self.lose(cluster)
        for reaper in [each for each in self.reapers if each.process.poll() is not None]:
            reaper.kill()
            self.reapers.remove(reaper)
        while len(self.clusters) < CLUSTERS:
            with suppress(AssertionError):  # it ended while it started: the next time, then
                self.clusters.append(self._cluster())
        while len(self.reapers) < REAPERS:
            self.reapers.append(Reaper(self.folder / "reapers.log"))

    def _cluster(self) -> QCluster:
        self._started += 1
        directory = self.folder / f"cluster-{self._started}"
        directory.mkdir()
        cluster = QCluster(
            directory,
            workers=WORKERS,
            recorder_url=f"http://{self.recorder.address}",
            agentruns=AGENTRUNS,
        )
        cluster.__enter__()
        return cluster

    def lose(self, cluster: QCluster) -> None:
        """Kill a whole cluster, like a power cut of its host."""
        cluster.kill()
        self.clusters.remove(cluster)

    def workers(self) -> list[int]:
        return sorted(pid for cluster in self.clusters for pid in cluster.workers())

    def strike_worker(self, random: Random, number: signal.Signals) -> bool:
        """Send a worker this signal. Returns whether there was one to strike."""
        workers = self.workers()
        return bool(workers) and send(random.choice(workers), number)

    def pause_worker(self, random: Random) -> bool:
        workers = [pid for pid in self.workers() if pid not in self.paused]
        if not workers:
            return False
        pid, pause = random.choice(workers), random.uniform(0.5, 5)
        paused = send(pid, signal.SIGSTOP)
        if paused:
            self.paused[pid] = time.monotonic() + pause
        return paused

    def wake_up(self, now: float = float("inf")) -> None:
        """Let those go on whose pause has ended."""
        for pid in [pid for pid, until in self.paused.items() if until <= now]:
            del self.paused[pid]
            send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
