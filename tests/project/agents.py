"""Durable runs that are plain functions: what the crash tests run, kill and run again."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from agentruns.enums import ToolEffect
from agentruns.registry import register
from agentruns.segment import Segment

from . import cell_agent  # noqa: F401  (registers itself)
from .bodies import async_body, body, end, sync_body, threaded_body
from .models import LedgerEntry
from .strange_errors import STRANGE

# The version that a process declares of the agent `versioned`, as in a rolling deploy.
AGENT_VERSION = "TEST_AGENT_VERSION"

READ = ToolEffect.READ_ONLY
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
REPEATABLE = ToolEffect.IDEMPOTENT_WRITE
TRANSACTIONAL = ToolEffect.TRANSACTIONAL_WRITE


@register("one_write")
def one_write(segment: Segment) -> Any:
    """Write once, not to be repeated, between two reads."""
    segment.step("read_before", sync_body("read_before"), effect=READ)
    written = segment.step("write", sync_body("write"), effect=WRITE)
    segment.step("read_after", sync_body("read_after"), effect=READ)
    return {"written": written}


@register("async_write")
async def async_write(segment: Segment) -> Any:
    await segment.astep("read_before", async_body("read_before"), effect=READ)
    written = await segment.astep("write", async_body("write"), effect=WRITE)
    await segment.astep("read_after", async_body("read_after"), effect=READ)
    return {"written": written}


@register("threaded_write")
async def threaded_write(segment: Segment) -> Any:
    await segment.astep("read_before", threaded_body("read_before"), effect=READ)
    written = await segment.astep("write", threaded_body("write"), effect=WRITE)
    await segment.astep("read_after", threaded_body("read_after"), effect=READ)
    return {"written": written}


@register("repeatable_write")
def repeatable_write(segment: Segment) -> Any:
    segment.step("read_before", sync_body("read_before"), effect=READ)
    written = segment.step("write", sync_body("write"), effect=REPEATABLE)
    segment.step("read_after", sync_body("read_after"), effect=READ)
    return {"written": written}


@register("transactional_write")
def transactional_write(segment: Segment) -> Any:
    """Write one ledger entry in the same transaction as its step."""

    def write(key: str) -> dict[str, Any]:
        LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=100)
        return body("write", key)

    segment.step("read_before", sync_body("read_before"), effect=READ)
    written = segment.step("write", write, effect=TRANSACTIONAL)
    segment.step("read_after", sync_body("read_after"), effect=READ)
    return {"written": written}


@register("two_writes")
def two_writes(segment: Segment) -> Any:
    segment.step("first", sync_body("first"), effect=WRITE)
    segment.step("second", sync_body("second"), effect=WRITE)
    return {"written": ["first", "second"]}


@register("overlapping_writes")
async def overlapping_writes(segment: Segment) -> Any:
    """Start a read and a second write while the first write is going on."""
    await asyncio.gather(
        segment.astep("first", async_body("first"), effect=WRITE),
        segment.astep("read", async_body("read"), effect=READ),
        segment.astep("second", async_body("second"), effect=WRITE),
    )
    return {"written": ["first", "second"]}


@register("undeclared")
def undeclared(segment: Segment) -> Any:
    """Say nothing about the effect: it is taken for a write that must not be repeated."""
    return segment.step("write", sync_body("write"))


@register("reads")
def reads(segment: Segment) -> Any:
    """Read three times and write nothing."""
    names = ("first", "second", "third")
    return [segment.step(name, sync_body(name), effect=READ) for name in names]


@register("poisoned")
def poisoned(segment: Segment) -> Any:
    """Kill the worker in a read, every time."""

    def kill(key: str) -> None:
        body("poison", key)
        end("kill")

    segment.step("write", sync_body("write"), effect=WRITE)
    return segment.step("poison", kill, effect=READ)


@register("swallows")
def swallows(segment: Segment) -> Any:
    """Catch whatever ends the write, and return as if nothing had been."""
    try:
        segment.step("write", sync_body("write"), effect=WRITE)
    except BaseException:  # somebody will
        return {"swallowed": True}
    return {"swallowed": False}


@register("versioned", version=os.environ.get(AGENT_VERSION, ""))
def versioned(segment: Segment) -> Any:
    """Say which versions of the code executed which step."""
    mine = os.environ.get(AGENT_VERSION, "")

    def tell(name: str) -> Any:
        return lambda key: [body(name, key)["done"], mine]

    return [segment.step(name, tell(name), effect=READ) for name in ("first", "second")]


@register("plan")
def plan(segment: Segment) -> Any:
    """Do the steps of the request in order: each has an effect, and takes so many seconds."""
    return [planned(segment, f"{n}-{what}", what, s) for n, (what, s) in enumerate(segment.request)]


def planned(segment: Segment, name: str, what: str, seconds: float) -> Any:
    if what == "ask":
        return segment.wait_for_input(name, "how many?", key=name)

    def act(key: str) -> Any:
        if what == TRANSACTIONAL:
            LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=1)
        facts = {"run": str(segment.run.uuid), "step": name, "epoch": segment.claim.epoch}
        return body(name, key, seconds, **facts, effect=what)

    return segment.step(name, act, effect=ToolEffect(what), key=name)


@register("limited", max_running=2)
def limited(segment: Segment) -> Any:
    """Read, for the time that the request says; of these, there are two at a time on all hosts."""

    def act(key: str) -> Any:
        try:
            return body("enter", key, segment.request["seconds"])
        finally:
            body("leave", key)

    return segment.step("read", act, effect=READ)


@register("echo")
def echo(segment: Segment) -> Any:
    return segment.request


@register("raises")
def raises(segment: Segment) -> Any:
    """Raise what the request names: inside the body of a step with this effect, or in none."""
    which, effect = segment.request
    if not effect:
        raise STRANGE[which]()
    return segment.step("step", raising(which), effect=ToolEffect(effect))


@register("raises_on_a_loop")
async def raises_on_a_loop(segment: Segment) -> Any:
    which, effect = segment.request
    if not effect:
        raise STRANGE[which]()
    return await segment.astep("step", raising(which), effect=ToolEffect(effect))


def raising(which: str) -> Any:
    def act(key: str) -> Any:
        body("step", key)
        raise STRANGE[which]()

    return act
