from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.servers.process import ROOT, Watchdog
from tests.servers.waiting import PATIENCE

from .environment import subprocess_environment


class OwnProcess:
    """A Python process on this test's database, for the time of a `with` block."""

    def __init__(self, *arguments: str, root: Path = ROOT, **options: Any) -> None:
        self.arguments = arguments
        self.root = root
        self.options = options

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, *self.arguments],
            cwd=self.root,
            env=subprocess_environment(root=self.root, **self.options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.watchdog = Watchdog(self.process.pid)
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    def send_signal(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if self.process.poll() is not None:
            raise AssertionError(f"{self.arguments} ended: {self.process.communicate()}")

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.watchdog.dismiss()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        pipes: tuple[IO[str] | None, ...] = (self.process.stdout, self.process.stderr)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()


class Reaper(OwnProcess):
    """A reaper as a process of its own, which sweeps all the time."""

    def __init__(self, every: float = 0.1, **options: Any) -> None:
        super().__init__("manage.py", "reap_stale_agent_runs", "--every", str(every), **options)


class SyncRunProcess(OwnProcess):
    """A synchronous run, in a process of its own that a test may kill."""

    def __init__(self, agent: str, request: Any = None, **options: Any) -> None:
        super().__init__("-m", "tests.harness.sync_run", agent, json.dumps(request), **options)

    def outcome(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Return what `run()` returned or raised: `outcome`, and its attributes."""
        stdout, stderr = self.process.communicate(timeout=timeout)
        if not stdout.strip():
            raise AssertionError(f"exit code {self.process.returncode}: {stderr}")
        outcome: dict[str, Any] = json.loads(stdout.splitlines()[-1])
        return outcome
