"""Runs of one process that share a toolset with a connection, such as an MCP server's, take turns.

A toolset's connection belongs to the event loop that opened it, and each segment has a loop of its
own: another one that used it meanwhile would wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset

from agentruns.clock import clock
from agentruns.conf import conf

from .exceptions import AgentRefused

LOOK_AGAIN_SECONDS = 0.05

_guard = threading.Lock()
_taken: set[int] = set()
# What the run takes turns with that this code belongs to.
_ours: ContextVar[frozenset[int]] = ContextVar("nrllm_turns", default=frozenset())


@asynccontextmanager
async def turn_of(agent: AbstractAgent[Any, Any]) -> AsyncGenerator[None]:
    """Wait until no other run of this process uses a connected toolset of the agent.

    Raises:
        AgentRefused: the run that has the turn is the one that waits, in one of its tools.
        TimeoutError: the turn did not come within `MAX_STEP_SECONDS`.
    """
    toolsets = frozenset(map(id, _connected(agent)))
    if toolsets & _ours.get():
        raise AgentRefused(
            "a tool runs an agent that shares a connected toolset with the run around it, which would "
            "wait for itself: register a function that builds the agent and its toolsets"
        )
    await _wait_for(toolsets)
    token = _ours.set(_ours.get() | toolsets)
    try:
        yield
    finally:
        _ours.reset(token)
        with _guard:
            _taken.difference_update(toolsets)


async def _wait_for(toolsets: frozenset[int]) -> None:
    deadline = clock() + conf.MAX_STEP_SECONDS
    while not _take(toolsets):
        if clock() >= deadline:
            raise TimeoutError("another run of this process keeps a toolset that this agent shares")
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _take(toolsets: frozenset[int]) -> bool:
    """Take all of them or none, so that no two runs wait for each other."""
    with _guard:
        if _taken & toolsets:
            return False
        _taken.update(toolsets)
        return True


def _connected(agent: AbstractAgent[Any, Any]) -> list[AbstractToolset[Any]]:
    found: list[AbstractToolset[Any]] = []

    def visit(leaf: AbstractToolset[Any]) -> None:
        # A dynamic toolset makes another for each run.
        opens = type(leaf).__aenter__ is not AbstractToolset.__aenter__
        if opens and not isinstance(leaf, DynamicToolset):
            found.append(leaf)

    for toolset in agent.toolsets:
        toolset.apply(visit)
    return found
