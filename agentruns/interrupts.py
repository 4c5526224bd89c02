from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_asks(ask: Callable[[], None]) -> Iterator[None]:
    """For the time of a segment, have SIGTERM call `ask`; afterwards deliver it as it was meant.

    Only on the main thread, where Python handles signals. Queues leave their workers with the
    default handler, which would end the process in the middle of a write.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False
    installed_by = os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        if os.getpid() != installed_by:
            # A child that a body forked: the signal is meant for it alone.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        received = True
        ask()

    former = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)
        if received:
            os.kill(os.getpid(), signal.SIGTERM)
