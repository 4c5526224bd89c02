from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from agentruns.testing.json_http import JsonServer, Reply, Request, serve
from agentruns.testing.jsonl import append_line
from tests.servers.script import Answer, Fault, Script


@dataclass(frozen=True)
class Conversation:
    first_user_message: str
    answers: int
    messages: int


class ModelEndpoint(ABC):
    """What OpenAI's and Anthropic's endpoints have in common; a subclass knows one's words."""

    def __init__(self, script: Script, log: Path | None) -> None:
        self.script = script
        self.log = log
        self.requests: list[dict[str, Any]] = []
        self.held = 0
        self.releases = 0
        self.changed = threading.Condition()

    @abstractmethod
    def conversation(self, body: dict[str, Any]) -> Conversation: ...

    @abstractmethod
    def message(self, answer: Answer, model: str) -> dict[str, Any]:
        """Return the whole answer as one JSON object."""

    @abstractmethod
    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        """Yield the answer as server-sent events."""

    @abstractmethod
    def error(self, status: int, message: str) -> dict[str, Any]: ...

    def complete(self, request: Request) -> Reply | None:
        """Answer one model request as the script says, or let it fail as the script says."""
        conversation = self.conversation(request.body)
        marker = self.script.marker_of(conversation.first_user_message)
        fault = self.note(request, conversation, marker) or Fault()
        self.wait(fault)
        if fault.status is not None:
            return self.refuse(fault.status, fault.message, fault.retry_after)
        answer = self.script.answer(marker, conversation.answers) if marker is not None else None
        if answer is None:
            # A client error, so that nobody retries what the script's author forgot.
            where = f"turn {conversation.answers} of {marker!r}"
            return self.refuse(400, f"the script has no {where}")
        if request.body.get("stream"):
            send_events(request.handler, list(self.events(answer, request.body)), cut=fault.cut)
            return None
        message = self.message(answer, request.body.get("model", ""))
        if fault.cut:
            cut_in_the_middle(request.handler, message)
            return None
        return Reply(message)

    def note(
        self, request: Request, conversation: Conversation, marker: str | None
    ) -> Fault | None:
        """Write the request down before anything is answered; return the fault that it meets."""
        with self.changed:
            number = len(self.requests) + 1
            fault = self.script.fault(number, marker, conversation.answers)
            entry = {
                "path": f"/{request.path}/{request.argument}",
                "marker": marker,
                "turn": conversation.answers,
                "messages": conversation.messages,
                "stream": bool(request.body.get("stream")),
                "fault": fault.status or ("cut" if fault.cut else "late") if fault else None,
                "tools": tool_names(request.body),
                "at": time.time(),
            }
            if self.log is not None:
                append_line(self.log, entry)
            self.requests.append(entry)
        return fault

    def wait(self, fault: Fault) -> None:
        with self.changed:
            if fault.delay:
                self.changed.wait_for(lambda: False, fault.delay)
            if fault.hold:
                seen = self.releases
                self.held += 1
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.releases > seen)

    def refuse(self, status: int, message: str, retry_after: int | None = None) -> Reply:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return Reply(self.error(status, message), status, headers)

    def set_script(self, request: Request) -> Reply:
        with self.changed:
            self.script = Script.parse(request.body)
            self.requests.clear()
            self.held = 0
        return Reply({})

    def list_requests(self, request: Request) -> Reply:
        with self.changed:
            return Reply(list(self.requests))

    def wait_held(self, request: Request) -> Reply:
        count = int(request.query.get("count", 1))
        with self.changed:
            if not self.changed.wait_for(lambda: self.held >= count, request.timeout):
                return Reply({"error": f"{self.held} requests held, not {count}"}, 504)
        return Reply({"held": self.held})

    def release(self, request: Request) -> Reply:
        with self.changed:
            self.releases += 1
            self.changed.notify_all()
        return Reply({})

    def routes(self) -> dict[str, Any]:
        return {
            "POST v1": self.complete,
            "POST script": self.set_script,
            "GET requests": self.list_requests,
            "GET held": self.wait_held,
            "POST release": self.release,
        }


def tool_names(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools") or []
    return [tool.get("function", tool).get("name", "") for tool in tools]


def pieces(text: str, size: int = 12) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def send_events(handler: BaseHTTPRequestHandler, events: list[str], *, cut: bool) -> None:
    """Send the events in chunks, so that a client notices when the last ones are missing."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for event in events[: len(events) // 2] if cut else events:
        chunk = event.encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    if cut:
        hang_up(handler)
    else:
        handler.wfile.write(b"0\r\n\r\n")


def cut_in_the_middle(handler: BaseHTTPRequestHandler, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])
    hang_up(handler)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def run(endpoint: type[ModelEndpoint], description: str) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, help="a JSON file, in the form of script.py")
    parser.add_argument("--log", type=Path, help="append each request to this file")
    parser.add_argument("--exit-with-stdin", action="store_true")
    options = parser.parse_args()
    script = Script.parse(json.loads(options.script.read_text()) if options.script else {})
    server = JsonServer(endpoint(script, options.log).routes(), options.port)
    serve(server, exit_with_stdin=options.exit_with_stdin)
