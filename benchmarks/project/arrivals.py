"""How a worker says that what was sent to it has arrived: by a socket, at once."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

# The path of the socket, for the workers.
SOCKET = "BENCHMARK_SOCKET"


def report_arrival() -> None:
    """Send this moment, by the machine's monotonic clock, which its processes share."""
    now = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.sendto(repr(now).encode(), os.environ[SOCKET])


class Arrivals:
    """The socket on which arrivals are reported, for the time of a `with` block."""

    def __init__(self, folder: Path) -> None:
        path = str(folder / "arrivals")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        os.environ[SOCKET] = path

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def next(self, seconds: float) -> float:
        """The moment of the next arrival.

        Raises:
            TimeoutError: there was none for so many seconds.
        """
        self._socket.settimeout(seconds)
        return float(self._socket.recv(100))
