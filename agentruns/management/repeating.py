from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from django.db import Error, connections

from ..conf import conf

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def repeat(
    act: Callable[[], None], report_failure: Callable[[Error], None], *, every_seconds: float
) -> None:
    """Call `act` with this pause in between, until SIGTERM or SIGINT asks to stop.

    An error of the database is reported, and the next call gets a new connection. What is being
    done when the signal arrives is finished; a second signal ends the process at once.
    """
    connection = connections[conf.DATABASE]
    with termination() as asked_within:
        while True:
            connection.close_if_unusable_or_obsolete()
            try:
                act()
            except Error as error:
                report_failure(error)
                connection.close()
            if asked_within(every_seconds):
                return


@contextmanager
def termination() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for a signal, at most so many seconds, and tells whether it came.

    The interpreter itself writes to the pipe, whatever the main thread is about to wait for: a
    handler of ours would run only after that.
    """
    asked: list[int] = []
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        restore()

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def asked_within(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        # Other signals wake it, too.
        while (
            not asked and select.select([readable], [], [], max(0, deadline - time.monotonic()))[0]
        ):
            os.read(readable, 1024)
        return bool(asked)

    former = {number: signal.getsignal(number) for number in SIGNALS}
    former_writable = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield asked_within
    finally:
        restore()
        signal.set_wakeup_fd(former_writable)
        os.close(readable)
        os.close(writable)
