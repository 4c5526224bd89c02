"""Somebody else's MCP server: a ticket system, over stdio or, with `--http`, over HTTP.

Its tools report to the recorder before they act and wait at `in_mcp:NAME` where a test wants them
to. There the test may also have the server die (`die`) or the tool fail (`fail`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from agentruns.testing.client import RecorderClient
from agentruns.testing.json_http import announce, stop_at_end_of_stdin

server = MCPServer("tickets")


async def act(name: str, ticket: int) -> str:
    url = os.environ.get("RECORDER_URL")
    if url:
        recorder = RecorderClient(url)
        await asyncio.to_thread(recorder.body, name, str(ticket))
        end(await asyncio.to_thread(recorder.hold, f"in_mcp:{name}"))
    return f"{name} {ticket}: done"


def end(ending: str | None) -> None:
    if ending == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "fail":
        raise RuntimeError("the ticket system is out of order")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look_up_ticket(ticket: int) -> str:
    """Read a ticket."""
    return await act("look_up_ticket", ticket)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False))
async def close_ticket(ticket: int) -> str:
    """Close a ticket; closing it again changes nothing."""
    return await act("close_ticket", ticket)


@server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False))
async def answer_ticket(ticket: int) -> str:
    """Send the customer an answer; a second call sends a second one."""
    return await act("answer_ticket", ticket)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def archive_ticket(ticket: int) -> str:
    """Say that it only reads, and write: annotations are somebody else's word."""
    return await act("archive_ticket", ticket)


@server.tool()
async def escalate_ticket(ticket: int) -> str:
    """Say nothing about what it does."""
    return await act("escalate_ticket", ticket)


def serve_http(server: MCPServer, port: int = 0, *, exit_with_stdin: bool) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    if exit_with_stdin:
        stop_at_end_of_stdin()
    # The socket is listening: who connects before the loop runs waits a moment.
    announce(port=listening.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a ticket system's tools by MCP.")
    parser.add_argument("--http", action="store_true", help="serve HTTP at /mcp instead of stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--recorder", help="the recorder's URL (else RECORDER_URL)")
    parser.add_argument("--exit-with-stdin", action="store_true")
    options = parser.parse_args()
    if options.recorder:
        os.environ["RECORDER_URL"] = options.recorder
    if options.http:
        serve_http(server, options.port, exit_with_stdin=options.exit_with_stdin)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
