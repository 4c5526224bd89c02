from __future__ import annotations

import asyncio

import pytest

from agentruns import calls
from agentruns.calls import SIBLING_TURNS, LoopCalls
from agentruns.sqlthread import SqlThread


def turns_until_siblings_are_given_up(monkeypatch: pytest.MonkeyPatch, seconds: float) -> int:
    """On a machine where each turn of the loop takes so long."""
    asked, now = 0, 0.0

    def settled() -> bool:
        nonlocal asked, now
        asked, now = asked + 1, now + seconds
        return False

    monkeypatch.setattr(calls, "clock", lambda: now)
    thread = SqlThread()
    try:
        asyncio.run(LoopCalls(thread).siblings(settled, lambda: None))
    finally:
        thread.close()
    return asked


def test_siblings_get_their_turns_on_a_machine_that_is_too_busy_to_give_them_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert turns_until_siblings_are_given_up(monkeypatch, seconds=1.0) > SIBLING_TURNS


def test_siblings_get_their_time_on_a_fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns_until_siblings_are_given_up(monkeypatch, seconds=0.002) > 200
