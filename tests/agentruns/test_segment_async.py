from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentruns.enums import StepState, ToolEffect
from agentruns.exceptions import EffectNotApplied, JournalMismatch
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    READ,
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    execute_again,
    executed,
    lose,
    queued,
    reread,
    step_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

LOST = ConnectionResetError("the other side is away")
COMPLETED = ("completed", "completed", "")
REQUEUED = ("queued", "", "")
UNCERTAIN = ("failed", "interrupted_write", "non_idempotent_write")


def facts(run: AgentRun) -> tuple[str, str, str]:
    return run.status, run.termination_reason, run.pending_effect


class Bodies(list[str]):
    def body(self, name: str, value: Any = None, error: BaseException | None = None) -> Any:
        async def run(key: str) -> Any:
            self.append(name)
            await asyncio.sleep(0)
            if error is not None:
                raise error
            return value

        return run

    def blocking(self, name: str) -> Any:
        def run(key: str) -> str:
            self.append(name)
            return name

        return run


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


def test_steps_are_executed_recorded_and_replayed(bodies: Bodies) -> None:
    rounds: list[Any] = []

    async def agent(segment: Segment) -> Any:
        read = await segment.astep("read", bodies.body("read", (1, 2)), effect=READ)
        write = await segment.astep("write", bodies.body("write", {"a": 1}), effect=WRITE)
        ledger = await segment.astep("ledger", bodies.blocking("ledger"), effect=TRANSACTIONAL)
        rounds.append([read, write, ledger])
        if len(rounds) == 1:
            raise LOST

    run = executed(agent)
    assert facts(run) == REQUEUED
    assert facts(execute_again(run, agent)) == COMPLETED
    assert rounds == [[[1, 2], {"a": 1}, "ledger"]] * 2
    assert bodies == ["read", "write", "ledger"]


def test_blocking_steps_may_be_used_on_the_loop(bodies: Bodies) -> None:
    async def agent(segment: Segment) -> None:
        segment.step("write", bodies.blocking("write"), effect=WRITE)

    assert facts(executed(agent)) == COMPLETED


def test_reads_overlap_and_writes_take_turns() -> None:
    at_work: set[str] = set()
    together: set[frozenset[str]] = set()

    def body(name: str, meet: asyncio.Barrier | None) -> Any:
        async def run(key: str) -> None:
            at_work.add(name)
            together.add(frozenset(at_work))
            if meet is not None:
                await meet.wait()
            for _turn in range(5):
                await asyncio.sleep(0)
                together.add(frozenset(at_work))
            at_work.remove(name)

        return run

    async def agent(segment: Segment) -> None:
        meet = asyncio.Barrier(3)  # both reads and the first write are in their bodies at once
        await asyncio.gather(
            segment.astep("read 1", body("read 1", meet), effect=READ),
            segment.astep("write 1", body("write 1", meet), effect=WRITE),
            segment.astep("write 2", body("write 2", None), effect=WRITE),
            segment.astep("write 3", body("write 3", None), effect=REPEATABLE),
            segment.astep("read 2", body("read 2", meet), effect=READ),
        )

    assert facts(executed(agent)) == COMPLETED
    assert {"read 1", "read 2", "write 1"} in together
    assert not any(len([name for name in group if "write" in name]) > 1 for group in together)


def test_a_read_that_ends_during_a_write_leaves_its_fence() -> None:
    fences: list[str] = []

    async def agent(segment: Segment) -> None:
        in_write, read_recorded = asyncio.Event(), asyncio.Event()

        async def write(key: str) -> None:
            in_write.set()
            await read_recorded.wait()
            stored = await asyncio.to_thread(fence_of, segment.run.pk)
            fences.append(stored)

        async def read_meanwhile() -> None:
            await in_write.wait()
            await segment.astep("read", read, effect=READ)
            read_recorded.set()

        async def read(key: str) -> None: ...

        await asyncio.gather(segment.astep("write", write, effect=WRITE), read_meanwhile())

    assert facts(executed(agent)) == COMPLETED
    assert fences == [WRITE]


def fence_of(pk: int) -> str:
    from django.db import connection

    try:
        return str(AgentRun.objects.values_list("pending_effect", flat=True).get(pk=pk))
    finally:
        connection.close()


def test_an_uncertain_write_ends_the_writes_that_wait_their_turn(bodies: Bodies) -> None:
    async def agent(segment: Segment) -> None:
        await asyncio.gather(
            segment.astep("one", bodies.body("one", error=LOST), effect=WRITE),
            segment.astep("two", bodies.body("two"), effect=WRITE),
            return_exceptions=True,
        )

    run = executed(agent)
    assert facts(run) == UNCERTAIN
    assert bodies == ["one"]


def test_a_write_that_is_cancelled_is_uncertain() -> None:
    async def agent(segment: Segment) -> str:
        started = asyncio.Event()

        async def write(key: str) -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(segment.astep("write", write, effect=WRITE))
        await started.wait()
        task.cancel()
        try:
            await task
        except BaseException:
            return "as if nothing had been"
        return "unreachable"

    run = executed(agent)
    assert facts(run) == UNCERTAIN
    assert step_of(run).state == StepState.UNCERTAIN


def test_a_write_that_times_out_is_uncertain() -> None:
    async def agent(segment: Segment) -> str:
        async def write(key: str) -> None:
            await asyncio.Event().wait()

        try:
            async with asyncio.timeout(0.3):
                await segment.astep("write", write, effect=WRITE)
        except TimeoutError:
            return "try again"
        return "unreachable"

    assert facts(executed(agent)) == UNCERTAIN


def test_a_write_cancelled_during_its_record_is_recorded_and_tried_from_there(
    bodies: Bodies,
) -> None:
    """What the code is told (a timeout) is not what is written down (a result): it must not go on."""
    rounds: list[int] = []

    async def agent(segment: Segment) -> Any:
        rounds.append(1)

        async def write(key: str) -> str:
            bodies.append("write")
            if len(rounds) == 1:
                task = asyncio.current_task()
                assert task is not None
                # Delivered at the next wait: the one for the record.
                asyncio.get_running_loop().call_soon(task.cancel)
            return "written"

        try:
            return await asyncio.ensure_future(segment.astep("write", write, effect=WRITE))
        except asyncio.CancelledError:
            return "not written"

    run = executed(agent)
    assert facts(run) == REQUEUED
    assert step_of(run).state == StepState.RECORDED
    run = execute_again(run, agent)
    assert facts(run) == COMPLETED
    output = AgentRun.objects.get(pk=run.pk).output
    assert output is not None
    assert output.value == "written"
    assert bodies == ["write"]


def test_a_read_that_is_cancelled_is_the_codes_business() -> None:
    async def agent(segment: Segment) -> str:
        async def read(key: str) -> None:
            await asyncio.Event().wait()

        try:
            async with asyncio.timeout(0.05):
                await segment.astep("read", read, effect=READ)
        except TimeoutError:
            return "went without it"
        return "unreachable"

    assert facts(executed(agent)) == COMPLETED


def test_not_applied_is_given_to_the_code_now_and_in_a_replay(bodies: Bodies) -> None:
    answers: list[Any] = []

    async def agent(segment: Segment) -> None:
        refusal = EffectNotApplied("declined")
        try:
            await segment.astep("write", bodies.body("write", error=refusal), effect=WRITE)
        except EffectNotApplied as said:
            answers.append(said.answer)
        if len(answers) == 1:
            raise LOST

    assert facts(execute_again(executed(agent), agent)) == COMPLETED
    assert answers == ["declined", "declined"]


@pytest.mark.parametrize("effect", [READ, WRITE, TRANSACTIONAL])
def test_the_same_key_twice_at_once_executes_one_body(bodies: Bodies, effect: ToolEffect) -> None:
    body = bodies.blocking("pay") if effect is TRANSACTIONAL else bodies.body("pay")

    async def agent(segment: Segment) -> None:
        await asyncio.gather(
            segment.astep("pay", body, key="k", effect=effect),
            segment.astep("pay", body, key="k", effect=effect),
            return_exceptions=True,
        )

    executed(agent)
    assert bodies == ["pay"]


def test_concurrent_steps_are_replayed_in_whatever_order_they_come(bodies: Bodies) -> None:
    rounds: list[int] = []

    async def agent(segment: Segment) -> None:
        rounds.append(1)
        names = ["a", "b", "c"] if len(rounds) == 1 else ["c", "new", "b", "a"]
        await asyncio.gather(
            *(segment.astep(name, bodies.body(name), effect=READ) for name in names)
        )
        if len(rounds) == 1:
            raise LOST

    run = execute_again(executed(agent), agent)
    assert facts(run) == COMPLETED
    assert sorted(bodies) == ["a", "b", "c", "new"]


def test_a_step_that_is_new_while_recorded_ones_are_missing_is_never_executed(
    bodies: Bodies,
) -> None:
    async def first(segment: Segment) -> None:
        await segment.astep("one", bodies.body("one"), effect=WRITE)
        raise LOST

    async def changed(segment: Segment) -> None:
        for name in ("two", "three"):
            try:
                await segment.astep(name, bodies.body(name), effect=WRITE)
            except JournalMismatch:
                continue

    run = execute_again(executed(first), changed)
    assert (run.status, run.error_class) == ("failed", "JournalMismatch")
    assert "'one'" in run.error_message
    assert bodies == ["one"]


def test_a_step_inside_a_task_that_a_body_started_is_refused(bodies: Bodies) -> None:
    async def agent(segment: Segment) -> None:
        async def outer(key: str) -> None:
            await asyncio.create_task(segment.astep("inner", bodies.body("inner"), effect=READ))

        await segment.astep("outer", outer, effect=READ)

    run = executed(agent)
    assert run.status == "failed"
    assert "inside the body" in run.error_message
    assert bodies == []


def test_an_async_transactional_body_is_refused(bodies: Bodies) -> None:
    async def agent(segment: Segment) -> None:
        await segment.astep("ledger", bodies.body("ledger"), effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, run.pending_effect) == ("failed", "")
    assert "plain function" in run.error_message
    assert bodies == []


def test_every_task_has_ended_before_the_run_is_settled(bodies: Bodies) -> None:
    ended: list[str] = []

    async def agent(segment: Segment) -> None:
        started = asyncio.Event()

        async def read(key: str) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(reread_in_thread(segment.run))

        forgotten = asyncio.ensure_future(segment.astep("read", read, effect=READ))
        await started.wait()
        assert not forgotten.done()
        raise LOST

    assert facts(executed(agent)) == REQUEUED
    assert ended == ["running"]


def reread_in_thread(run: AgentRun) -> str:
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connection

    def read() -> str:
        try:
            return str(AgentRun.objects.values_list("status", flat=True).get(pk=run.pk))
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result()


def test_a_task_forgotten_in_a_write_leaves_an_uncertain_write() -> None:
    async def agent(segment: Segment) -> str:
        started = asyncio.Event()

        async def write(key: str) -> None:
            started.set()
            await asyncio.Event().wait()

        forgotten = asyncio.ensure_future(segment.astep("write", write, effect=WRITE))
        await started.wait()
        assert not forgotten.done()
        return "as if nothing had been"

    assert facts(executed(agent)) == UNCERTAIN


def test_what_cannot_be_ended_leaves_the_run_to_the_reaper(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "END_GRACE_SECONDS": 0.2}
    release: list[asyncio.Event] = []

    async def agent(segment: Segment) -> None:
        started, released = asyncio.Event(), asyncio.Event()
        release.append(released)

        async def stubborn() -> None:
            started.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        task = asyncio.ensure_future(stubborn())
        await started.wait()
        assert not task.done()
        raise LOST

    from tests.factories import registered

    with registered(agent) as name:
        run = queued(name)
        with pytest.raises(SystemExit):
            execute(str(run.uuid))
    row = reread(run)
    assert (row.status, row.claim_epoch) == ("running", 1)
    lose(run)
    assert reread(run).status == "queued"


def test_evidence_of_a_write_whose_run_was_lost_is_kept(bodies: Bodies) -> None:
    async def agent(segment: Segment) -> None:
        async def write(key: str) -> str:
            await asyncio.to_thread(lose_elsewhere, segment.run)
            return "sent"

        await segment.astep("write", write, effect=WRITE)

    run = executed(agent)
    assert facts(run) == UNCERTAIN
    assert Step.objects.get(run=run).landed_late


def lose_elsewhere(run: AgentRun) -> None:
    from django.db import connection

    try:
        lose(run)
    finally:
        connection.close()
