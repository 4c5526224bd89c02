from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.servers.process import ROOT, Watchdog
from tests.servers.waiting import PATIENCE, wait_until


class ClusterProcess:
    """A real `manage.py qcluster`, in a process group of its own, for the time of a `with` block.

    The cluster is the parent of a sentinel; the sentinel is the parent of the workers, of a pusher
    and of a monitor. What is killed here is a worker; the sentinel replaces it.
    """

    def __init__(self, log: Path, environment: dict[str, str], root: Path = ROOT) -> None:
        self.log = log
        self.root = root
        self.environment = environment
        self.killed = False

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "qcluster"],
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.watchdog = Watchdog(self.process.pid)
        try:
            wait_until(self.is_up, 120, lambda: f"the start of qcluster:\n{self.output()}")
        except BaseException:
            self.kill()
            raise
        return self

    def is_up(self) -> bool:
        """Return whether there are workers.

        Raises:
            AssertionError: the cluster has ended by itself.
        """
        self.check()
        return "ready for work" in self.output()

    def check(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"qcluster ended by itself:\n{self.output()}")

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def owns(self, pid: int) -> bool:
        return pid in process_group(self.process.pid) and pid != self.process.pid

    def kill_worker(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send the signal to this worker itself; after a SIGKILL, wait until it is dead."""
        if not self.owns(pid):
            raise AssertionError(f"{pid} is no worker of this cluster")
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not is_alive(pid), what=f"the death of worker {pid}")

    def ask_to_stop(self) -> None:
        """Send the cluster a SIGTERM, as an init system does, and do not wait."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = PATIENCE) -> bool:
        """Stop with SIGTERM; return whether the cluster ended by itself within the time."""
        self.ask_to_stop()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()
        return True

    def kill(self) -> None:
        """Kill every process of the group, like a power cut, and wait until none is left."""
        if self.killed:
            return
        self.killed = True
        self.watchdog.dismiss()
        members = process_group(self.process.pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in members), what="the end of qcluster")

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not merely waiting to be buried by its parent."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def process_group(leader: int) -> list[int]:
    members = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == leader:
                members.append(pid)
        except ProcessLookupError:
            continue
    return members
