"""Cells side by side: each lane is a process with a database and a recorder of its own."""

from __future__ import annotations

import os
import signal
import struct
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID

import django
from django.conf import settings

from .client import RecorderClient
from .databases import enter_lane
from .json_http import JsonServer
from .recorder import Recorder, routes
from .workers import die_with_parent

C = TypeVar("C")
R = TypeVar("R")

INDEX = struct.Struct("i")


class LaneFailed(RuntimeError):
    """A lane ended before its cells were done."""


class NobodyIsWoken:
    """The kit's dispatcher: it starts each worker itself."""

    def wake(self, uuid: UUID) -> None:
        return None


REPORTED_MAIL = "agentruns.testing.mail.ReportedMail"
NOBODY = f"{NobodyIsWoken.__module__}.{NobodyIsWoken.__qualname__}"


@dataclass(frozen=True)
class Lane:
    """What a cell needs: a recorder, and a folder for what its workers print."""

    recorder: RecorderClient
    folder: Path


@contextmanager
def recording() -> Iterator[RecorderClient]:
    """Fork a recorder; it ends with this block, and also if this process is killed."""
    server = JsonServer(routes(Recorder()))
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    port = server.server_port
    server.server_close()
    try:
        yield RecorderClient(f"http://127.0.0.1:{port}")
    finally:
        os.close(theirs)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def side_by_side(
    lanes: int,
    cells: Sequence[C],
    do: Callable[[Lane, C], R],
    done: Callable[[R], None],
    **agentruns: Any,
) -> None:
    """Do each cell in one of the lanes; `done` is called here with each result, as it comes.

    `agentruns` are merged over the settings of the lanes and their workers.

    Raises:
        LaneFailed: a lane ended before its cells were done, or `do` raised something.
    """
    tasks, filled = os.pipe()
    os.write(filled, b"".join(INDEX.pack(index) for index in range(len(cells))))
    os.close(filled)
    receivers: dict[Any, int] = {}
    try:
        for lane in range(1, lanes + 1):
            receiver, sender = Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                _be_lane(lane, lanes, tasks, sender, cells, do, agentruns)
            sender.close()
            receivers[receiver] = pid
        left = _receive(set(receivers), len(cells), done)
    finally:
        os.close(tasks)
        for pid in receivers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
    if left:
        raise LaneFailed(f"{left} cells were not done: a lane ended early")


def _receive(open_pipes: set[Any], left: int, done: Callable[[Any], None]) -> int:
    while open_pipes:
        for pipe in wait(list(open_pipes)):
            try:
                result = cast("Any", pipe).recv()
            except EOFError:
                open_pipes.discard(pipe)
                continue
            if isinstance(result, LaneFailed):
                raise result
            left -= 1
            done(result)
    return left


def _be_lane(
    lane: int,
    lanes: int,
    tasks: int,
    sender: Connection[Any, Any],
    cells: Sequence[Any],
    do: Callable[[Lane, Any], Any],
    agentruns: dict[str, Any],
) -> NoReturn:
    try:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        adapt_settings(agentruns)
        enter_lane(lane, lanes)
        with recording() as recorder, tempfile.TemporaryDirectory(prefix="lane-") as folder:
            while packed := os.read(tasks, INDEX.size):
                (index,) = INDEX.unpack(packed)
                recorder.reset()
                sender.send(do(Lane(recorder, Path(folder)), cells[index]))
    except BaseException:
        sender.send(LaneFailed(traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sender.close()
        os._exit(0)


def adapt_settings(agentruns: dict[str, Any]) -> None:
    """Nobody is woken but by the kit, and no mail leaves this machine."""
    settings.AGENTRUNS = {**getattr(settings, "AGENTRUNS", {}), "DISPATCHER": NOBODY, **agentruns}
    catch_mail()


def catch_mail() -> None:
    """Have each mail reported instead, also where a project names its mailers (Django 6.1)."""
    mailers = getattr(settings, "MAILERS", None)
    if mailers is not None and django.VERSION >= (6, 1):
        settings.MAILERS = {name: {"BACKEND": REPORTED_MAIL} for name in {"default", *mailers}}
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a project may still have the older setting
        settings.EMAIL_BACKEND = REPORTED_MAIL
