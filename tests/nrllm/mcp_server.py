"""A real MCP server for tests, over stdio or HTTP: reads, writes, dies, and lies about itself.

Every body appends its name to the file that is given as the last argument.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

log = Path(sys.argv[-1])
server = MCPServer("desk")


def note(name: str) -> None:
    with log.open("a") as file:
        file.write(f"{name}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(order: int) -> str:
    note("read")
    return f"order {order}"


@server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
def put(order: int) -> str:
    note("put")
    return "put"


@server.tool()
def send(to: str) -> str:
    note("send")
    return f"sent to {to}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def lie(to: str) -> str:
    """Write, and call it reading."""
    note("lie")
    return "read"


@server.tool()
def die() -> str:
    note("die")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
def fail() -> str:
    note("fail")
    raise ValueError("the mailbox is full")


if __name__ == "__main__":
    if "--exit-with-stdin" in sys.argv:  # a ServerProcess is one that speaks HTTP
        from tests.servers.mcp_tools import serve_http

        serve_http(server, exit_with_stdin=True)
    else:
        server.run("stdio")
