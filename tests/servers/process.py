from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


class ServerFailed(RuntimeError):
    """A server process ended, or said nothing, before it was ready."""


class Watchdog:
    """Kills a process group when this process is gone, however that happened."""

    def __init__(self, group: int) -> None:
        # The end of its standard input is the end of this process.
        self.process = subprocess.Popen(
            ["sh", "-c", f"cat; kill -KILL -{group}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Kill the watchdog, with its `cat`, so that it kills nobody."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


class ServerProcess:
    """One of the servers of this package (or of another, named in full) as a process of its own, for the time of a `with` block.

    `ready` is the line that the server printed: its port, and more where it has more to say.
    """

    def __init__(self, name: str, *arguments: str, timeout: float = PATIENCE) -> None:
        self.name = name
        self.module = name if "." in name else f"tests.servers.{name}"
        self.options = ("--exit-with-stdin", *arguments)
        self.timeout = timeout
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.errors: IO[bytes] = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, *self.options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            # A process group of its own: Ctrl-C in a terminal is for whoever started it.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            self.ready = self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_until_ready(self) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], self.timeout)[0]:
            raise ServerFailed(
                f"{self.name} was not ready in {self.timeout} s\n{self.complaints()}"
            )
        line = stdout.readline()
        if not line:
            raise ServerFailed(f"{self.name} ended before it was ready\n{self.complaints()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def complaints(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
