"""A real SMTP server that writes each message down before it answers.

It may withhold its answer: the message is out, and the process that sent it does not know yet.
"""

from __future__ import annotations

import argparse
import asyncio
import email
import signal
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from agentruns.testing.json_http import JsonServer, Reply, Request, announce, stop_at_end_of_stdin
from agentruns.testing.jsonl import append_line


def read(envelope: Envelope) -> EmailMessage:
    return email.message_from_bytes(envelope.original_content or b"", policy=policy.default)


def readable_body(message: EmailMessage) -> str:
    part = message.get_body(("plain",))
    return str(part.get_content()) if isinstance(part, EmailMessage) else ""


def describe(envelope: Envelope) -> dict[str, Any]:
    message = read(envelope)
    return {
        "at": time.time(),
        "from": envelope.mail_from,
        "to": list(envelope.rcpt_tos),
        "subject": message.get("Subject", ""),
        "message_id": message.get("Message-ID", ""),
        "idempotency_key": message.get("X-Idempotency-Key", ""),
        "headers": dict(message.items()),
        "body": readable_body(message),
    }


@dataclass
class Mailbox:
    """What has arrived, and whose senders are kept waiting. Used on the event loop only."""

    log: Path | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    held_recipients: set[str] = field(default_factory=set)
    held: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        entry = describe(envelope)
        if self.log is not None:
            append_line(self.log, entry)
        self.messages.append(entry)
        await self.wait_while_held(set(envelope.rcpt_tos) | {""})
        return "250 Message accepted"

    async def wait_while_held(self, recipients: set[str]) -> None:
        async with self.changed:
            if not recipients & self.held_recipients:
                return
            self.held += 1
            self.changed.notify_all()
            await self.changed.wait_for(lambda: not recipients & self.held_recipients)

    async def hold(self, request: Request) -> Reply:
        self.held_recipients.add(request.body.get("recipient", ""))
        return Reply({})

    async def release(self, request: Request) -> Reply:
        async with self.changed:
            self.held_recipients.clear()
            self.changed.notify_all()
        return Reply({})

    async def wait_held(self, request: Request) -> Reply:
        count = int(request.query.get("count", 1))
        try:
            async with asyncio.timeout(request.timeout), self.changed:
                await self.changed.wait_for(lambda: self.held >= count)
        except TimeoutError:
            return Reply({"error": f"{self.held} replies withheld, not {count}"}, 504)
        return Reply({"held": self.held})

    async def list_messages(self, request: Request) -> Reply:
        return Reply(list(self.messages))


def control_routes(mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    def on_loop(method: Any) -> Any:
        def route(request: Request) -> Reply:
            coroutine: Coroutine[Any, Any, Reply] = method(request)
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

        return route

    return {
        "POST hold": on_loop(mailbox.hold),
        "POST release": on_loop(mailbox.release),
        "GET held": on_loop(mailbox.wait_held),
        "GET messages": on_loop(mailbox.list_messages),
    }


async def serve_mail(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    mailbox = Mailbox(log=options.log, held_recipients=set(options.hold))
    server = await loop.create_server(
        lambda: SMTP(mailbox, enable_SMTPUTF8=True, loop=loop), "127.0.0.1", options.port
    )
    control = JsonServer(control_routes(mailbox, loop))
    threading.Thread(target=control.serve_forever, daemon=True).start()
    if options.exit_with_stdin:
        stop_at_end_of_stdin()
    announce(port=server.sockets[0].getsockname()[1], control_port=control.server_port)
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Accept mail and write it down.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="append each message to this file")
    parser.add_argument("--hold", action="append", default=[], metavar="RECIPIENT")
    parser.add_argument("--exit-with-stdin", action="store_true")
    asyncio.run(serve_mail(parser.parse_args()))


if __name__ == "__main__":
    main()
