from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    path: str
    argument: str
    query: dict[str, str]
    body: Any
    handler: BaseHTTPRequestHandler

    @property
    def timeout(self) -> float:
        return float(self.query.get("timeout", 30))


@dataclass(frozen=True)
class Reply:
    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Reply | None]


class JsonServer(ThreadingHTTPServer):
    """An HTTP server on the loopback whose routes take and give JSON.

    A route is found by method and by the first part of the path, `POST hold`; the rest of the path
    is its argument. A route that returns None has answered by itself through `request.handler`.
    """

    daemon_threads = True
    # A killed client's connections wait here until they are noticed; a short queue would refuse.
    request_queue_size = 64

    def __init__(self, routes: Mapping[str, Route], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), JsonHandler)
        self.routes = routes

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that was killed in the middle of a request is what these servers are for.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class JsonHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JsonServer

    def do_GET(self) -> None:
        self.dispatch()

    def do_POST(self) -> None:
        self.dispatch()

    def dispatch(self) -> None:
        request = self.read()
        route = self.server.routes.get(f"{self.command} {request.path}")
        if route is None:
            reply: Reply | None = Reply({"error": f"no route {self.command} {self.path}"}, 404)
        else:
            reply = route(request)
        if reply is not None:
            self.answer(reply)

    def read(self) -> Request:
        url = urlsplit(self.path)
        path, _, argument = url.path.strip("/").partition("/")
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return Request(
            path=path,
            argument=unquote(argument),
            query=dict(parse_qsl(url.query)),
            body=json.loads(raw) if raw else {},
            handler=self,
        )

    def answer(self, reply: Reply) -> None:
        content = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error belongs to tracebacks."""


def block_stop_signals() -> None:
    """Keep SIGTERM and SIGINT for `wait_for_stop`; call it before any thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def announce(**ready: Any) -> None:
    """Print the one line that says that the server is ready, and where."""
    print(json.dumps(ready), flush=True)


def stop_at_end_of_stdin() -> None:
    """Send this process a SIGTERM when whoever started it has gone, however that happened."""

    def watch() -> None:
        # Not sys.stdin.read(): its lock would hold up the end of this process for a second.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def serve(server: JsonServer, *, exit_with_stdin: bool = False, **ready: Any) -> None:
    """Serve until SIGTERM or SIGINT."""
    block_stop_signals()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if exit_with_stdin:
        stop_at_end_of_stdin()
    announce(port=server.server_port, **ready)
    # Nothing is left to do at the end: the threads are daemons, and what was logged is on the disk.
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
