"""A wire to the database that breaks where a test wants it to: the server is the real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connection, connections

Chooser = Callable[[bytes], str]

PORT = {"postgresql": 5432, "mysql": 3306}
# What is encrypted can't be told apart.
PLAIN: dict[str, dict[str, Any]] = {
    "postgresql": {"sslmode": "disable", "gssencmode": "disable"},
    "mysql": {"ssl_disabled": True},
}

PASS, LOSE_STATEMENT, LOSE_ANSWER = "pass", "lose the statement", "lose the answer"


class BreakingWire:
    """Forwards connections to the server, and breaks one at a statement.

    `at` decides about each message of a client: pass it on; break the connection before the server
    has it; or let the server do it, and break the connection before the answer.
    """

    def __init__(self, server: tuple[Any, ...], family: socket.AddressFamily) -> None:
        self._server, self._family = server, family
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: tuple[bytes, bytes, str] | None = None
        self._refused = b""
        self._lock = threading.Lock()
        self.broken = 0
        self.down = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_at(self, statement: bytes, how: str, *, after: bytes = b"") -> None:
        """Break the next connection that sends `statement` after it has sent `after`."""
        self._cut = (after, statement, how)

    def break_each(self, statement: bytes) -> None:
        """From now on break every connection that sends `statement`, before the server has it."""
        self._refused = statement

    def cut_everything(self) -> None:
        """Break every connection and refuse new ones until `restore()`."""
        self.down = True
        for end in tuple(self._open):
            hang_up(end)

    def restore(self) -> None:
        self.down = False

    def close(self) -> None:
        self.cut_everything()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            server = socket.socket(self._family, socket.SOCK_STREAM)
            server.connect(self._server if self._family != socket.AF_UNIX else self._server[0])
            self._open |= {client, server}
            wire = threading.Event()
            for pump in (self._pump_statements, self._pump_answers):
                threading.Thread(target=pump, args=(client, server, wire), daemon=True).start()

    def _pump_statements(
        self, client: socket.socket, server: socket.socket, lost: threading.Event
    ) -> None:
        sent = b""
        with suppress(OSError):
            while data := client.recv(65536):
                how = self._decide(sent, data)
                sent += data
                if how == LOSE_ANSWER:
                    lost.set()
                elif how == LOSE_STATEMENT:
                    break
                server.sendall(data)
        hang_up(client)
        if not lost.is_set():
            hang_up(server)

    def _pump_answers(
        self, client: socket.socket, server: socket.socket, lost: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():
                    break
                client.sendall(data)
        hang_up(client)
        hang_up(server)

    def _decide(self, sent: bytes, data: bytes) -> str:
        with self._lock:
            if self._refused and self._refused in data:
                self.broken += 1
                return LOSE_STATEMENT
            if self._cut is None:
                return PASS
            after, statement, how = self._cut
            # MariaDB's quotes are others.
            sent, data = sent.replace(b"`", b'"'), data.replace(b"`", b'"')
            position = data.find(statement)
            if position < 0 or after not in sent + data[:position]:
                return PASS
            self._cut = None
            self.broken += 1
            return how


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def breaking_wire() -> Iterator[BreakingWire]:
    """Have every new connection of this process go over a wire that a test may break.

    The test's own stays with the server.
    """
    connections["default"].ensure_connection()
    settings = connections.settings["default"]
    host, port = settings["HOST"] or "127.0.0.1", int(settings["PORT"] or PORT[connection.vendor])
    if host.startswith("/"):
        wire = BreakingWire((f"{host}/.s.PGSQL.{port}",), socket.AF_UNIX)
    else:
        family, *_rest, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        wire = BreakingWire(address, family)
    before = {name: settings[name] for name in ("HOST", "PORT", "OPTIONS")}
    settings.update(
        HOST="127.0.0.1",
        PORT=str(wire.port),
        OPTIONS={**settings["OPTIONS"], **PLAIN[connection.vendor]},
    )
    try:
        yield wire
    finally:
        settings.update(before)
        wire.close()
