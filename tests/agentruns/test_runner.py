from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from django.db import transaction

from agentruns import api
from agentruns.api import Completed, Waiting
from agentruns.enums import RunStatus, ToolEffect
from agentruns.exceptions import (
    AgentRunError,
    InsideTransaction,
    PayloadError,
    RunCancelled,
    RunFailed,
    RunLost,
    RunUncertain,
    UnknownAgent,
)
from agentruns.guard import Claim
from agentruns.models import AgentRun
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    READ,
    REPEATABLE,
    WRITE,
    claim,
    executed,
    history,
    lose,
    make_due,
    queued,
    registered,
    reread,
    snapshot,
    step_of,
)
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LOST = ConnectionResetError("the other side is away")


def nothing(key: str) -> None: ...


def raising(error: BaseException) -> Any:
    def body(key: str) -> Any:
        raise error

    return body


# The typed outcomes of run().


def run_here(function: Any, request: Any = None) -> Any:
    with registered(function) as agent:
        return api.run(agent, request)


def test_a_completed_run_gives_its_output() -> None:
    outcome = run_here(lambda segment: {"got": segment.request}, {"a": 1})
    assert isinstance(outcome, Completed)
    assert outcome.output == {"got": {"a": 1}}
    run = AgentRun.objects.get(uuid=outcome.uuid)
    assert (run.status, run.mode, run.claim_epoch) == ("completed", "synchronous", 1)


def test_a_run_that_waits_for_a_person_says_so() -> None:
    outcome = run_here(lambda segment: segment.wait_for_input("question", "how many?"))
    assert isinstance(outcome, Waiting)
    assert outcome.status is RunStatus.WAITING_FOR_INPUT
    assert AgentRun.objects.get(uuid=outcome.uuid).mode == "queued", "it goes on in the background"


@pytest.mark.parametrize("error", [LOST, ValueError("a bug")])
def test_a_failed_run_raises_its_error_as_the_cause(error: Exception) -> None:
    def agent(segment: Segment) -> None:
        segment.step("write", nothing, effect=WRITE)
        raise error

    with pytest.raises(RunFailed) as failed:
        run_here(agent)
    assert type(failed.value) is RunFailed
    assert failed.value.reason == "not_retryable"
    assert failed.value.__cause__ is error
    run = AgentRun.objects.get(uuid=failed.value.uuid)
    assert (run.status, run.requeue_count) == ("failed", 0), "nobody waits for a second attempt"


@pytest.mark.parametrize("error", [LOST, ValueError("a bug")])
def test_a_run_that_stopped_in_a_write_is_uncertain(error: Exception) -> None:
    with pytest.raises(RunUncertain) as uncertain:
        run_here(lambda segment: segment.step("write", raising(error), effect=WRITE))
    assert uncertain.value.reason == "interrupted_write"
    assert AgentRun.objects.get(uuid=uncertain.value.uuid).pending_effect == WRITE


def test_an_idempotent_write_that_failed_is_a_plain_failure() -> None:
    with pytest.raises(RunFailed) as failed:
        run_here(lambda segment: segment.step("write", raising(LOST), effect=REPEATABLE))
    assert type(failed.value) is RunFailed


def test_a_cancelled_run_says_so() -> None:
    def agent(segment: Segment) -> None:
        api.cancel(segment.run.uuid)
        segment.step("write", nothing, effect=WRITE)

    with pytest.raises(RunCancelled):
        run_here(agent)


def test_a_run_that_another_process_has_now_is_lost() -> None:
    def agent(segment: Segment) -> None:
        # As after a person's verdict, the run is executed in the background.
        AgentRun.objects.filter(pk=segment.run.pk).write_guarded(mode="queued")
        lose(segment.run)
        make_due(segment.run)
        claim(segment.run, "another:host:1:00000000")
        segment.step("write", nothing, effect=WRITE)

    with pytest.raises(RunLost):
        run_here(agent)
    assert AgentRun.objects.get().status == "running"


def test_a_run_that_was_lost_and_dead_lettered_is_uncertain() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            lose(segment.run)

        segment.step("write", body, effect=WRITE)

    with pytest.raises(RunUncertain):
        run_here(agent)


@pytest.mark.parametrize("end", [SystemExit(1), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("effect", [READ, WRITE])
def test_what_ends_the_process_passes_when_the_row_is_in_order(
    end: BaseException, effect: ToolEffect
) -> None:
    with pytest.raises(type(end)):
        run_here(lambda segment: segment.step("step", raising(end), effect=effect))
    reason = "interrupted_write" if effect is WRITE else "not_retryable"
    assert AgentRun.objects.get().termination_reason == reason


def test_run_inside_atomic_is_refused_and_writes_nothing() -> None:
    with registered(nothing) as agent:
        with transaction.atomic(), pytest.raises(InsideTransaction):
            api.run(agent)
        assert not AgentRun.objects.exists()


@pytest.mark.django_db(transaction=False)
def test_run_inside_the_transaction_of_a_test_is_refused_too() -> None:
    """`TestCase` wraps a test in atomic(): there a run needs `transaction=True`."""
    with registered(nothing) as agent, pytest.raises(InsideTransaction):
        api.run(agent)


def test_run_on_an_event_loop_is_refused() -> None:
    async def on_a_loop() -> None:
        with registered(nothing) as agent:
            api.run(agent)

    with pytest.raises(AgentRunError, match="arun"):
        asyncio.run(on_a_loop())


def test_run_refuses_what_enqueue_refuses() -> None:
    with pytest.raises(UnknownAgent):
        api.run("nobody")
    with registered(nothing) as agent, pytest.raises(PayloadError):
        api.run(agent, object())
    assert not AgentRun.objects.exists()


def test_the_status_never_carries_the_request() -> None:
    run = executed(lambda segment: "an output", request={"password": "hunter2"})
    assert "hunter2" not in repr(api.status(run.uuid))
    assert api.status(run.uuid).output == "an output"
    assert "hunter2" not in repr(api.events(run.uuid))


def test_the_status_tells_an_uncertain_run_from_a_failed_one() -> None:
    run = executed(lambda segment: segment.step("write", raising(LOST), effect=WRITE))
    state = api.status(run.uuid)
    assert (state.settled, state.uncertain, state.reason) == (True, True, "interrupted_write")
    failed = api.status(executed(raising_agent).uuid)
    assert (failed.settled, failed.uncertain) == (True, False)


def raising_agent(segment: Segment) -> None:
    raise ValueError("a bug")


def test_the_history_is_read_on_from_where_it_was_left() -> None:
    run = executed(lambda segment: None)
    first, *rest = api.events(run.uuid)
    assert api.events(run.uuid, after=first.id) == rest
    assert [event.kind for event in rest] == ["claimed", "completed"]


# Every step has ended before the run is settled, also those in threads of the agent's own.


def start_in_thread(segment: Segment, body: Any, effect: ToolEffect) -> threading.Thread:
    def step() -> None:
        with contextlib.suppress(BaseException):
            segment.step("step", body, effect=effect)

    thread = threading.Thread(target=step)
    thread.start()
    return thread


def test_a_write_left_to_a_thread_is_recorded_before_the_run_completes() -> None:
    started = threading.Event()

    def agent(segment: Segment) -> str:
        def write(key: str) -> str:
            started.set()
            assert wait_until(lambda: segment.heartbeat.settling)
            return "sent"

        start_in_thread(segment, write, WRITE)
        assert started.wait(20)
        return "done"

    run = executed(agent)
    assert (run.status, run.pending_effect) == ("completed", "")
    assert step_of(run, "step").state == "recorded"


@pytest.mark.parametrize("error", [None, LOST])
def test_a_thread_that_stays_in_its_write_leaves_the_run_to_the_reaper(
    settings: Any, error: Exception | None
) -> None:
    """Settled, the run would be shown as one whose worker is known to be gone."""
    settings.AGENTRUNS = {**settings.AGENTRUNS, "END_GRACE_SECONDS": 0.1}
    started, release = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def agent(segment: Segment) -> str:
        def write(key: str) -> None:
            started.set()
            release.wait(20)

        threads.append(start_in_thread(segment, write, WRITE))
        assert started.wait(20)
        if error is not None:
            raise error
        return "done"

    with pytest.raises(SystemExit):
        executed(agent)
    row = AgentRun.objects.get()
    assert (row.status, row.pending_effect) == ("running", WRITE)
    release.set()
    threads[0].join()
    lose(row)
    assert reread(row).former_worker_may_act()


# A message is only a wake-up call.


def test_a_message_that_is_delivered_again_starts_nothing() -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        segment.step("write", lambda key: bodies.append("write"), effect=WRITE)

    with registered(agent) as name:
        run = queued(name)
        for _delivery in range(3):
            execute(str(run.uuid))
    assert bodies == ["write"]
    assert history(run) == ["queued", "claimed", "completed"]


def test_a_message_that_arrives_while_the_run_is_executed_starts_nothing() -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        execute(str(segment.run.uuid))
        bodies.append("agent")

    assert executed(agent).status == "completed"
    assert bodies == ["agent"]


def test_a_message_for_a_run_that_does_not_exist_does_nothing() -> None:
    other = queued("echo")
    before = snapshot(other)
    execute("00000000-0000-0000-0000-000000000000")
    assert snapshot(other) == before


def test_an_owner_is_named_after_its_kind_its_host_and_its_process() -> None:
    owners: list[str] = []
    executed(lambda segment: owners.append(segment.claim.owner))
    run_here(lambda segment: owners.append(segment.claim.owner))
    kinds = [owner.split(":")[0] for owner in owners]
    assert kinds == ["queue", "sync"]
    assert all(owner.split(":")[2] == str(os.getpid()) for owner in owners)
    assert len(set(owners)) == 2


# SIGTERM.


@pytest.fixture
def terminations() -> Iterator[list[int]]:
    """What the process's own handler receives."""
    received: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)

    former = signal.signal(signal.SIGTERM, handle)
    yield received
    assert signal.getsignal(signal.SIGTERM) is handle, "the handler is put back"
    signal.signal(signal.SIGTERM, former)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_outside_a_write_the_run_is_given_back_at_once(terminations: list[int]) -> None:
    after: list[str] = []

    def agent(segment: Segment) -> None:
        def read(key: str) -> None:
            terminate()
            after.append("the rest of the body")

        segment.step("read", read, effect=READ)

    run = executed(agent)
    assert (run.status, run.requeue_count) == ("queued", 0)
    assert history(run) == ["queued", "claimed", "given_back"]
    assert after == []
    assert terminations == [signal.SIGTERM], "delivered as it was meant, afterwards"


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE])
def test_inside_a_write_it_is_finished_and_recorded_first(
    terminations: list[int], effect: ToolEffect
) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        def write(key: str) -> str:
            terminate()
            assert terminations == []
            bodies.append("write")
            return "sent"

        segment.step("write", write, effect=effect)
        segment.step("after", lambda key: bodies.append("after"), effect=WRITE)

    run = executed(agent)
    assert (run.status, run.requeue_count, run.pending_effect) == ("queued", 0, "")
    assert step_of(run).state == "recorded"
    assert bodies == ["write"]
    assert terminations == [signal.SIGTERM]


def test_a_write_that_fails_after_the_signal_is_uncertain_nevertheless(
    terminations: list[int],
) -> None:
    def agent(segment: Segment) -> None:
        def write(key: str) -> None:
            terminate()
            raise LOST

        segment.step("write", write, effect=WRITE)

    assert executed(agent).termination_reason == "interrupted_write"


def test_a_second_signal_interrupts_nothing(
    terminations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor and a cluster may both ask: the run is given back all the same."""

    give_back = AgentRun.give_back

    def asked_again(run: AgentRun, held: Claim) -> Any:
        terminate()
        return give_back(run, held)

    monkeypatch.setattr(AgentRun, "give_back", asked_again)
    run = executed(lambda segment: terminate())
    assert (run.status, run.requeue_count) == ("queued", 0)


def test_a_signal_that_was_swallowed_ends_the_next_step(terminations: list[int]) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> str:
        try:
            terminate()
        except BaseException:
            segment.step("write", lambda key: bodies.append("write"), effect=WRITE)
        return "as if nothing had been"

    run = executed(agent)
    assert (run.status, run.output, bodies) == ("queued", None, [])


def test_on_a_loop_the_run_is_given_back_at_once(terminations: list[int]) -> None:
    async def agent(segment: Segment) -> None:
        async def read(key: str) -> None:
            asyncio.get_running_loop().call_soon(terminate)
            await asyncio.Event().wait()

        await segment.astep("read", read, effect=READ)

    run = executed(agent)
    assert (run.status, run.requeue_count) == ("queued", 0)


def test_on_a_loop_a_write_is_finished_and_recorded_first(terminations: list[int]) -> None:
    async def agent(segment: Segment) -> None:
        async def write(key: str) -> str:
            terminate()
            await asyncio.sleep(0)
            return "sent"

        await segment.astep("write", write, effect=WRITE)
        await segment.astep("after", write, effect=WRITE)

    run = executed(agent)
    assert (run.status, run.requeue_count, run.pending_effect) == ("queued", 0, "")
    assert [step.key for step in run.journal().all()] == ["write"]


def test_a_write_that_waits_its_turn_does_not_start_after_the_signal(
    terminations: list[int],
) -> None:
    bodies: list[str] = []

    async def agent(segment: Segment) -> None:
        def body(name: str) -> Any:
            async def write(key: str) -> None:
                bodies.append(name)
                terminate()
                await asyncio.sleep(0)

            return write

        await asyncio.gather(
            segment.astep("one", body("one"), effect=WRITE),
            segment.astep("two", body("two"), effect=WRITE),
            return_exceptions=True,
        )

    run = executed(agent)
    assert (run.status, run.requeue_count, bodies) == ("queued", 0, ["one"])


def test_a_run_given_back_is_completed_by_the_next_worker(terminations: list[int]) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> str:
        segment.step("write", lambda key: bodies.append("write"), effect=WRITE)
        if segment.claim.epoch == 1:
            terminate()
        return "done"

    with registered(agent) as name:
        run = queued(name)
        execute(str(run.uuid))
        execute(str(run.uuid))
    assert reread(run).status == "completed"
    assert bodies == ["write"]


def test_a_synchronous_run_leaves_the_signal_to_the_process(terminations: list[int]) -> None:
    outcome = run_here(lambda segment: terminate())
    assert isinstance(outcome, Completed)
    assert terminations == [signal.SIGTERM]


def test_a_segment_in_another_thread_installs_no_handler(terminations: list[int]) -> None:
    from django.db import connection

    before = signal.getsignal(signal.SIGTERM)
    handlers: list[Any] = []

    def work() -> None:
        executed(lambda segment: handlers.append(signal.getsignal(signal.SIGTERM)))
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
