"""Worker processes that are forked from a warm parent, and end where a test says."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from django.db import connections

from .. import runner
from .boundaries import Arrival, Point, watched
from .client import RecorderClient

PR_SET_PDEATHSIG = 1
FAILED = 70
NOTICE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Strike:
    """A signal that a worker gets when it comes to this boundary of this step for the nth time."""

    point: str
    key: str = ""
    nth: int = 1
    signal: int = signal.SIGKILL


@dataclass
class Watch:
    """What a worker does at each boundary: report it, and send itself the signal it is to get.

    Nothing but the process itself knows that it is there, and SIGKILL asks nobody.
    """

    recorder: RecorderClient
    strike: Strike | None = None
    lists_points: bool = False

    def __post_init__(self) -> None:
        self._left = self.strike.nth if self.strike else 0
        self._lock = threading.Lock()
        self._noticed = threading.Event()

    def __call__(self, arrival: Arrival) -> None:
        call = arrival.call
        key = call.key if call else ""
        step = {"name": call.name, "effect": str(call.effect)} if call else {}
        if arrival.point is Point.IN_BODY and call is not None:
            self.recorder.body(
                call.name,
                arrival.idempotency_key,
                step=key,
                run=str(arrival.run),
                effect=str(call.effect),
            )
        if self.lists_points:
            self.recorder.point(
                point=str(arrival.point), step=key, run=str(arrival.run), pid=os.getpid(), **step
            )
        if self.strike and (self.strike.point, self.strike.key) == (arrival.point, key):
            self._come(self.strike)

    def _come(self, strike: Strike) -> None:
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
        self.recorder.point(struck=os.getpid())
        if strike.signal == signal.SIGSTOP:
            # To this thread: sent to the process, it may stop another one first, while this goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), strike.signal)
        if strike.signal == signal.SIGTERM:
            # On another thread than the main one, go on only when that has been interrupted.
            self._noticed.wait(NOTICE_SECONDS)

    def notice_termination(self) -> None:
        """Learn when the main thread has been asked to stop. For a process that ends afterwards."""
        original = runner.stop

        def noticed(*args: object) -> None:
            self._noticed.set()
            original(*args)  # type: ignore[arg-type]

        patch.object(runner, "stop", noticed).start()


@dataclass
class Worker:
    """A forked process that does one thing and ends."""

    pid: int
    log: Path

    def wait(self, timeout: float) -> int | None:
        """Wait for the process to end or to be stopped. Its status; None if it did neither."""
        deadline = time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                return status
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)

    def kill(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


def start_worker(function: Callable[[], object], log: Path, watch: Watch | None = None) -> Worker:
    """Fork a worker that calls the function and ends; what it prints goes to `log`.

    The caller's connections are closed first: two processes must not share one.

    Raises:
        RuntimeError: a transaction is open here.
    """
    refuse_open_transaction()
    connections.close_all()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _be_worker(function, log, watch)
    return Worker(pid, log)


def refuse_open_transaction() -> None:
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        raise RuntimeError("a worker can't be forked inside a transaction")


def _be_worker(function: Callable[[], object], log: Path, watch: Watch | None) -> NoReturn:
    code = FAILED
    try:
        die_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if watch is None:
            function()
        else:
            watch.notice_termination()
            with watched(watch):
                function()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Where the system can (Linux), let this process be killed when its parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def describe_status(status: int | None) -> str:
    if status is None:
        return "did not end"
    if os.WIFSTOPPED(status):
        return "was stopped"
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
