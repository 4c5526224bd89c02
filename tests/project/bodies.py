"""Bodies of steps that report to the recorder and end as a test tells them to.

A test arms `in_body:NAME` to hold the body of that name, or to have it end in one of `ENDINGS`.
Without a recorder the bodies do nothing but return.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any
from urllib.parse import quote

from agentruns.exceptions import EffectLanded, EffectNotApplied
from agentruns.testing.client import RecorderClient

from .failures import DestinationBroken, DestinationUnavailable

ENDINGS: dict[str, Callable[[], BaseException]] = {
    "unavailable": lambda: DestinationUnavailable("503 Service Unavailable"),
    "broken": lambda: DestinationBroken("500 and nobody knows why"),
    "not_applied": lambda: EffectNotApplied({"refused": True}),
    "landed": lambda: EffectLanded("it happened, its answer was lost"),
    "exit": lambda: SystemExit(1),
}


@cache
def recorder() -> RecorderClient | None:
    url = os.environ.get("RECORDER_URL")
    return RecorderClient(url) if url else None


def body(name: str, key: str, seconds: float = 0, **facts: Any) -> dict[str, Any]:
    """Report that this body runs, wait if the test wants it to, and end as the test says."""
    witness = recorder()
    if witness is not None:
        witness.body(name, key, **facts)
        time.sleep(seconds)  # it works
        end(witness.hold(f"in_body:{name}"))
    return {"done": name, "key": key}


def end(ending: str | None) -> None:
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ending is not None:
        raise ENDINGS[ending]()


def sync_body(name: str) -> Callable[[str], dict[str, Any]]:
    def named(key: str) -> dict[str, Any]:
        return body(name, key)

    return named


def async_body(name: str) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """Return a body that waits on the event loop, as one that awaits a socket does."""

    async def named(key: str) -> dict[str, Any]:
        witness = recorder()
        if witness is not None:
            witness.body(name, key)
            end(await hold_on_loop(witness.address, f"in_body:{name}"))
        return {"done": name, "key": key}

    return named


def threaded_body(name: str) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """Return a body that blocks in a thread of its own, which nothing can interrupt."""

    async def named(key: str) -> dict[str, Any]:
        return await asyncio.to_thread(body, name, key)

    return named


async def hold_on_loop(address: str, point: str) -> Any:
    """Ask the recorder to be held, without blocking a thread."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        content = json.dumps({"pid": os.getpid()}).encode()
        head = f"POST /hold/{quote(point, safe='')} HTTP/1.0\r\nContent-Length: {len(content)}"
        writer.write(head.encode() + b"\r\n\r\n" + content)
        answer = await reader.read()
    finally:
        writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])["answer"]
