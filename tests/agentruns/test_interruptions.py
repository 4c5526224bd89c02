"""What interrupts a step where nobody expects it must not be taken for the end of the step."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from agentruns import bodies, execution
from agentruns.enums import RunStatus
from agentruns.models import AgentRun
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from agentruns.segment import Segment
from agentruns.verdict import MOST_RETRY_AFTER_SECONDS, retry_delay
from tests.factories import TRANSACTIONAL, WRITE, executed, expire, reread, running, step_of

pytestmark = pytest.mark.django_db(transaction=True)


class Alarm(BaseException):
    """What a signal handler of somebody else's raises."""


def test_an_interruption_between_body_and_record_leaves_the_fence_standing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[str] = []
    encode = bodies.ending_returned

    def interrupted(value: Any) -> Ending:
        monkeypatch.setattr(execution, "ending_returned", encode)
        raise Alarm

    def agent(segment: Segment) -> Any:
        for _ in range(2):
            try:
                return segment.step("send", sent.append, key="send", effect=WRITE)
            except Alarm:
                continue
        return None

    monkeypatch.setattr(execution, "ending_returned", interrupted)
    run = executed(agent)
    assert len(sent) == 1
    assert (run.status, run.termination_reason) == (RunStatus.FAILED, "interrupted_write")


def test_an_interruption_of_a_transaction_is_not_taken_for_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paid: list[str] = []

    def interrupt(segment: Segment) -> None:
        submit = segment.sql.submit

        def submitted(function: Any) -> Any:
            future = submit(function)
            future.result()
            monkeypatch.setattr(segment.sql, "submit", submit)
            raise Alarm

        monkeypatch.setattr(segment.sql, "submit", submitted)

    def agent(segment: Segment) -> Any:
        interrupt(segment)
        try:
            return segment.step("from the account", paid.append, effect=TRANSACTIONAL)
        except Alarm:
            return segment.step("from the card", paid.append, effect=TRANSACTIONAL)

    run = executed(agent)
    assert len(paid) == 1
    assert step_of(run, "from the account").state == "recorded"
    assert not run.journal().filter(key="from the card").exists()


def test_calls_that_only_their_order_tells_apart_need_a_key_when_tasks_race() -> None:
    sent: list[str] = []

    async def agent(segment: Segment) -> Any:
        recorded = asyncio.Event()

        async def body(key: str) -> None:
            sent.append(key)

        async def first() -> None:
            await segment.astep("send", body, effect=WRITE)
            recorded.set()

        async def second() -> None:
            await recorded.wait()
            await segment.astep("send", body, effect=WRITE)

        await asyncio.gather(first(), second())

    run = executed(agent)
    assert run.status == RunStatus.FAILED
    assert "its own key" in run.error_message
    assert len(sent) == 1


def test_a_counted_key_that_was_given_to_another_call_is_refused() -> None:
    sent: list[str] = []

    def agent(segment: Segment) -> Any:
        segment.step("send", sent.append, key="send#2", effect=WRITE)
        segment.step("send", sent.append, effect=WRITE)
        segment.step("send", sent.append, effect=WRITE)

    run = executed(agent)
    assert run.status == RunStatus.FAILED
    assert "send#2" in run.error_message


def test_a_body_on_a_loop_that_was_timed_out_may_still_act() -> None:
    def slow() -> None:
        time.sleep(0.3)

    async def agent(segment: Segment) -> Any:
        async def body(key: str) -> None:
            async with asyncio.timeout(0.05):
                await sync_to_async(slow)()

        await segment.astep("send", body, effect=WRITE)

    run = executed(agent)
    assert run.termination_reason == "interrupted_write"
    assert run.former_worker_may_act()


def test_a_plain_body_that_raised_may_have_left_something_behind() -> None:
    """Such as one whose own thread pool goes on when it stopped waiting for it."""
    release, written = threading.Event(), threading.Event()

    def works(key: str) -> None:
        assert release.wait(20)
        written.set()

    with ThreadPoolExecutor(1) as pool:

        def times_out(key: str) -> None:
            pool.submit(works, key).result(timeout=0.01)

        run = executed(lambda segment: segment.step("send", times_out, effect=WRITE))
        assert run.termination_reason == "interrupted_write"
        assert run.former_worker_may_act()
        assert not written.is_set(), "it has yet to write"
        release.set()
    assert written.is_set()


def test_a_plain_body_on_a_loop_that_raised_may_have_left_something_behind() -> None:
    def fails(key: str) -> None:
        raise OSError("cut")

    async def agent(segment: Segment) -> Any:
        await segment.astep("send", fails, effect=WRITE)

    run = executed(agent)
    assert run.termination_reason == "interrupted_write"
    assert run.former_worker_may_act()


def test_a_body_that_did_not_start_left_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was paused between the stamp and the body."""
    times = iter([0.0, 10_000.0])
    monkeypatch.setattr("agentruns.execution.clock", lambda: next(times, 10_000.0))
    run = executed(lambda segment: segment.step("send", lambda key: None, effect=WRITE))
    assert run.termination_reason == "interrupted_write"
    assert not run.former_worker_may_act()


def test_an_async_body_that_raised_may_have_left_something_behind() -> None:
    async def agent(segment: Segment) -> Any:
        async def fails(key: str) -> None:
            raise OSError("cut")

        await segment.astep("send", fails, effect=WRITE)

    run = executed(agent)
    assert run.former_worker_may_act()


def test_a_plain_function_that_gave_back_a_coroutine_may_have_left_something_behind() -> None:
    async def fails() -> None:
        raise OSError("cut")

    async def agent(segment: Segment) -> Any:
        await segment.astep("send", lambda key: fails(), effect=WRITE)

    assert executed(agent).former_worker_may_act()


def test_a_transactional_body_can_not_leave_its_transaction() -> None:
    def reconnects(key: str) -> None:
        connection.close()
        connection.connect()

    run = executed(lambda segment: segment.step("post", reconnects, effect=TRANSACTIONAL))
    assert run.status == RunStatus.FAILED
    assert not run.journal().filter(key="post", state="recorded").exists()


@pytest.mark.postgres
def test_a_row_that_can_not_be_read_strands_no_other() -> None:
    bad, _ = running()
    good, _ = running()
    expire(good)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE agentruns_agentrun SET lease_expires_at = '-infinity' WHERE id = %s", [bad.pk]
        )
    report = sweep()
    assert reread(good).status == RunStatus.QUEUED
    assert [run.uuid for run in report.errors] == [f"pk {bad.pk}"]
    AgentRun.objects.filter(pk=bad.pk).write_guarded(
        lease_expires_at=None, status="queued", claimed_by=""
    )


@pytest.mark.parametrize("asked", [1e15, float("inf"), float("nan"), -5.0])
def test_a_strangers_retry_after_puts_no_run_off_for_ever(asked: float) -> None:
    delay = retry_delay(0, base_seconds=1, max_seconds=2, retry_after_seconds=asked)
    assert 0 < delay.total_seconds() <= MOST_RETRY_AFTER_SECONDS


def sleep_when_up(up: Any) -> None:
    up.set()
    # Not at once: a signal that comes right before a sleep is handled after it.
    for _ in range(900):
        time.sleep(0.1)


def test_a_child_that_a_body_forked_is_ended_by_its_own_sigterm() -> None:
    def body(key: str) -> int:
        context = multiprocessing.get_context("fork")
        up = context.Event()
        child = context.Process(target=sleep_when_up, args=(up,))
        child.start()
        assert up.wait(30)
        child.terminate()
        child.join(30)
        return child.exitcode or 0

    run = executed(lambda segment: segment.step("fork", body, effect=WRITE))
    assert run.status == RunStatus.COMPLETED
    stored = AgentRun.objects.get(pk=run.pk).output
    assert stored is not None
    assert stored.value == -signal.SIGTERM


def test_a_segment_is_refused_in_a_child_that_a_body_forked() -> None:
    def agent(segment: Segment) -> str:
        context = multiprocessing.get_context("fork")
        said, told = context.Pipe(duplex=False)
        child = context.Process(target=step_in_child, args=(segment, told))
        child.start()
        assert said.poll(30), "the child hangs"
        child.join(30)
        return str(said.recv())

    run = executed(agent)
    stored = AgentRun.objects.get(pk=run.pk).output
    assert stored is not None
    assert "forked" in stored.value


def step_in_child(segment: Segment, told: Any) -> None:
    try:
        segment.step("send", str, effect=WRITE)
    except BaseException as error:
        told.send(str(error))


def test_a_generator_is_no_body() -> None:
    def body(key: str) -> Any:
        yield key

    run = executed(lambda segment: segment.step("send", body, effect=WRITE))
    assert (run.status, run.pending_effect) == (RunStatus.FAILED, "")
    assert "generator" in run.error_message
