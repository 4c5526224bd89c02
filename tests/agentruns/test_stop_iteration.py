from __future__ import annotations

import asyncio

import pytest

from agentruns.segment import Segment
from tests.factories import TRANSACTIONAL, executed

pytestmark = pytest.mark.django_db(transaction=True)


def raised_by_a_first(key: str = "") -> str:
    return str(next(iter(())))


def test_one_in_a_transactional_body_on_the_loop_ends_the_segment() -> None:
    async def agent(segment: Segment) -> None:
        await segment.astep("first", raised_by_a_first, effect=TRANSACTIONAL)

    run = executed(agent)
    assert run.status == "failed"
    assert "StopIteration" in run.error_message


def test_one_in_a_thread_of_the_loop_reaches_who_waits_for_it() -> None:
    async def agent(segment: Segment) -> str:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.to_thread(raised_by_a_first)
        return "told"

    assert executed(agent).status == "completed"
