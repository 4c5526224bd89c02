from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agentruns.enums import StepKind, StepOutcome, StepState, ToolEffect
from agentruns.exceptions import (
    AgentRunError,
    EffectLanded,
    EffectNotApplied,
    InsideTransaction,
    JournalMismatch,
    LandedWithoutResult,
    PayloadError,
    SegmentInterrupt,
)
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.factories import (
    READ,
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    empty_fence_by_hand,
    execute_again,
    executed,
    lose,
    reread,
    step_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

# Fails the segment in a way that is tried again.
LOST = ConnectionResetError("the other side is away")


class Bodies(list[str]):
    """Which bodies ran, in their order."""

    def body(self, name: str, value: Any = None, error: BaseException | None = None) -> Any:
        def run(key: str) -> Any:
            self.append(name)
            if error is not None:
                raise error
            return value

        return run


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


def facts(run: AgentRun) -> tuple[str, str, str]:
    return run.status, run.termination_reason, run.pending_effect


COMPLETED = ("completed", "completed", "")
REQUEUED = ("queued", "", "")
UNCERTAIN = ("failed", "interrupted_write", "non_idempotent_write")
NOT_RETRYABLE = ("failed", "not_retryable", "")


# What a step gives, and what it writes down.


@pytest.mark.parametrize("effect", ToolEffect)
def test_a_step_is_executed_recorded_and_replayed(bodies: Bodies, effect: ToolEffect) -> None:
    seen = []

    def agent(segment: Segment) -> Any:
        seen.append(segment.step("step", bodies.body("step", (1, {"a": 2})), effect=effect))
        if len(seen) == 1:
            raise LOST
        return seen[-1]

    run = executed(agent)
    assert facts(run) == REQUEUED
    run = execute_again(run, agent)
    assert facts(run) == COMPLETED
    assert bodies == ["step"]
    assert seen == [[1, {"a": 2}], [1, {"a": 2}]], "the JSON round trip, both times"


def test_an_undeclared_step_is_a_non_idempotent_write(bodies: Bodies) -> None:
    run = executed(lambda segment: segment.step("step", bodies.body("step")))
    assert step_of(run, "step").effect == WRITE


def test_the_fence_stands_while_the_body_runs_and_for_everybody_to_see(bodies: Bodies) -> None:
    seen: list[Any] = []

    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            row = reread(segment.run)  # on a connection of its own
            seen.append((row.pending_effect, row.pending_step_id))
            step = step_of(segment.run)
            assert step.arguments is not None
            seen.append((step.state, step.arguments.value, step.idempotency_key == key))

        segment.step("write", body, effect=WRITE, arguments={"to": "customer"})

    run = executed(agent)
    assert facts(run) == COMPLETED
    assert seen == [(WRITE, step_of(run).pk), ("started", {"to": "customer"}, True)]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("effect", [READ, TRANSACTIONAL])
def test_a_step_that_needs_no_fence_writes_none(bodies: Bodies, effect: ToolEffect) -> None:
    """Statements counted, on the one connection on which a segment speaks."""
    statements: list[str] = []

    def agent(segment: Segment) -> None:
        segment.sql.submit(start_counting).result()
        segment.step("step", bodies.body("step"), effect=effect)
        statements.extend(segment.sql.submit(stop_counting).result())

    assert facts(executed(agent)) == COMPLETED
    assert len([sql for sql in statements if "INSERT INTO agentruns_step" in sql]) == 1
    (renewed,) = run_updates(statements)
    assert "lease_expires_at" in renewed
    assert "pending_effect" not in renewed


@pytest.mark.usefixtures("form")
def test_a_write_is_one_stamp_and_one_record(bodies: Bodies) -> None:
    statements: list[str] = []

    def agent(segment: Segment) -> None:
        segment.sql.submit(start_counting).result()
        segment.step("step", bodies.body("step"), effect=WRITE)
        statements.extend(segment.sql.submit(stop_counting).result())

    assert facts(executed(agent)) == COMPLETED
    for update in run_updates(statements):
        assert "lease_expires_at" in update
        assert "pending_effect" in update
    assert len(run_updates(statements)) == 2


def run_updates(statements: list[str]) -> list[str]:
    """What each statement sets in a run's row."""
    parts = [sql.partition("UPDATE agentruns_agentrun")[2] for sql in statements]
    return [part.partition("WHERE")[0] for part in parts if part]


_counting: dict[int, CaptureQueriesContext] = {}


def start_counting() -> None:
    context = _counting[threading.get_ident()] = CaptureQueriesContext(connection)
    context.__enter__()


def stop_counting() -> list[str]:
    """The statements, without the marks in which each database quotes names."""
    context = _counting.pop(threading.get_ident())
    context.__exit__(None, None, None)
    return [re.sub(r'["`]', "", query["sql"]) for query in context.captured_queries]


def test_the_same_idempotency_key_on_every_attempt_and_another_for_every_step() -> None:
    keys: list[str] = []

    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            keys.append(key)
            if len(keys) == 1:
                raise LOST

        segment.step("write", body, effect=REPEATABLE)
        segment.step("another", keys.append, effect=REPEATABLE)

    run = execute_again(executed(agent), agent)
    assert facts(run) == COMPLETED
    assert keys[0] == keys[1]
    assert keys[1] != keys[2]


def test_a_step_asked_for_again_under_its_key_is_replayed(bodies: Bodies) -> None:
    def agent(segment: Segment) -> Any:
        first = segment.step("pay", bodies.body("pay", 1), key="k", effect=WRITE)
        return [first, segment.step("pay", bodies.body("pay", 2), key="k", effect=WRITE)]

    run = executed(agent)
    assert facts(run) == COMPLETED
    assert bodies == ["pay"]


def test_a_name_called_again_is_another_step(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        for value in range(3):
            segment.step("pay", bodies.body("pay", value), effect=WRITE)

    run = executed(agent)
    assert [step.key for step in run.journal().order_by("pk")] == ["pay", "pay#2", "pay#3"]


# What the end of a write's body means.


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        ValueError("a bug"),
        TimeoutError(),
        SystemExit(1),
        KeyboardInterrupt(),
        MemoryError(),
        AgentRunError("an error of ours"),
        PayloadError(),
        JournalMismatch("not from the journal"),
        LandedWithoutResult("only the journal says so"),
        GeneratorExit(),
        StopIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_write_that_raises_anything_is_uncertain(bodies: Bodies, error: BaseException) -> None:
    caught: list[BaseException] = []

    def agent(segment: Segment) -> None:
        try:
            segment.step("write", bodies.body("write", error=error), effect=WRITE)
        except BaseException as interrupt:
            caught.append(interrupt)
            raise

    run = run_to_its_end(agent, type(error))
    assert facts(run) == UNCERTAIN
    assert isinstance(caught[0], SegmentInterrupt), "no handler of exceptions may see it"
    assert step_of(run).state == StepState.UNCERTAIN
    assert bodies == ["write"]


def run_to_its_end(agent: Callable[[Segment], Any], error: type[BaseException]) -> AgentRun:
    """Execute a run whose worker's process may have to end."""
    if issubclass(error, (SystemExit, KeyboardInterrupt)):
        with pytest.raises(error):
            executed(agent)
        return reread(AgentRun.objects.get())
    return executed(agent)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE])
def test_an_error_that_cannot_be_printed_ends_a_write_like_any_other(
    bodies: Bodies, effect: ToolEffect
) -> None:
    """An error while the error is described must not become what the code sees."""
    caught: list[BaseException] = []

    def agent(segment: Segment) -> None:
        try:
            segment.step("write", bodies.body("write", error=UnprintableError()), effect=effect)
        except BaseException as error:
            caught.append(error)
            raise

    run = executed(agent)
    assert isinstance(caught[0], SegmentInterrupt)
    assert run.status == "failed"
    assert run.pending_effect == effect


def test_a_read_whose_error_cannot_be_printed_ends_the_run(bodies: Bodies) -> None:
    failing = bodies.body("read", error=UnprintableError())
    run = executed(lambda segment: segment.step("read", failing, effect=READ))
    assert facts(run) == NOT_RETRYABLE
    assert run.error_class == "UnprintableError"


def test_an_idempotent_write_that_fails_is_not_given_to_the_code(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        try:
            segment.step("write", bodies.body("write", error=LOST), effect=REPEATABLE)
        except Exception:
            segment.step("apology", bodies.body("apology"), effect=WRITE)

    run = executed(agent)
    assert facts(run) == REQUEUED
    assert bodies == ["write"]


def test_a_read_that_fails_is_given_to_the_code(bodies: Bodies) -> None:
    def agent(segment: Segment) -> str:
        try:
            segment.step("read", bodies.body("read", error=LOST), effect=READ)
        except ConnectionResetError:
            return "nothing to read"
        return "unreachable"

    run = executed(agent)
    assert facts(run) == COMPLETED


@pytest.mark.parametrize("effect", ToolEffect)
def test_what_says_that_it_was_not_applied_is_recorded_and_replayed(
    bodies: Bodies, effect: ToolEffect
) -> None:
    answers: list[Any] = []

    def agent(segment: Segment) -> None:
        refusal = EffectNotApplied({"declined": True})
        try:
            segment.step("write", bodies.body("write", error=refusal), effect=effect)
        except EffectNotApplied as said:
            answers.append(said.answer)
        if len(answers) == 1:
            raise LOST

    run = executed(agent)
    assert facts(run) == REQUEUED
    assert step_of(run).outcome == StepOutcome.EFFECT_NOT_APPLIED
    assert facts(execute_again(run, agent)) == COMPLETED
    assert answers == [{"declined": True}] * 2
    assert bodies == ["write"]


def test_an_answer_that_cannot_be_kept_is_still_not_applied(bodies: Bodies) -> None:
    def agent(segment: Segment) -> Any:
        refusal = EffectNotApplied(object())
        try:
            segment.step("write", bodies.body("write", error=refusal), effect=WRITE)
        except EffectNotApplied as said:
            return said.answer
        return "unreachable"

    assert facts(executed(agent)) == COMPLETED


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    "result",
    [object(), {1: 2}, b"bytes", Hostile(a=1), "x" * 2000],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("effect", [WRITE, REPEATABLE])
def test_a_write_that_landed_with_a_result_that_cannot_be_kept(
    bodies: Bodies, effect: ToolEffect, result: Any, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_PAYLOAD_BYTES": 1000}

    def agent(segment: Segment) -> None:
        try:
            segment.step("charge", bodies.body("charge", result), effect=effect)
        except Exception:
            segment.step("apology", bodies.body("apology"), effect=WRITE)

    run = executed(agent)
    assert facts(run) == NOT_RETRYABLE
    assert run.error_class == "LandedWithoutResult"
    assert "charge" in run.error_message
    step = step_of(run, "charge")
    assert (step.state, step.outcome) == ("recorded", StepOutcome.LANDED_WITHOUT_RESULT)
    run.retry(by="somebody")
    run = execute_again(reread(run), agent)
    assert facts(run) == NOT_RETRYABLE
    assert bodies == ["charge"]


def test_a_body_that_says_that_it_landed(bodies: Bodies) -> None:
    landed = EffectLanded("the answer was lost")

    run = executed(
        lambda segment: segment.step("charge", bodies.body("charge", error=landed), effect=WRITE)
    )
    assert facts(run) == NOT_RETRYABLE
    assert "the answer was lost" in run.error_message


async def never_awaited() -> None:
    raise AssertionError


def test_a_blocking_write_that_returned_an_awaitable_is_not_taken_for_one_that_landed() -> None:
    run = executed(lambda segment: segment.step("w", lambda key: never_awaited(), effect=WRITE))
    assert facts(run) == UNCERTAIN


def test_an_async_body_is_refused_by_a_blocking_step() -> None:
    async def body(key: str) -> None: ...

    run = executed(lambda segment: segment.step("write", body))
    assert (run.status, run.error_class, run.pending_effect) == ("failed", "TypeError", "")


# What can't be fenced does not run.


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE, TRANSACTIONAL])
def test_a_write_inside_atomic_is_refused(bodies: Bodies, effect: ToolEffect) -> None:
    def agent(segment: Segment) -> None:
        with transaction.atomic():
            segment.step("write", bodies.body("write"), effect=effect)

    run = executed(agent)
    assert (run.status, run.error_class, run.pending_effect) == ("failed", "InsideTransaction", "")
    assert bodies == []


@pytest.mark.server  # on SQLite an open transaction holds the only write lock
def test_a_read_inside_atomic_is_allowed(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        with transaction.atomic():
            segment.step("read", bodies.body("read"), effect=READ)

    assert facts(executed(agent)) == COMPLETED


def test_code_may_catch_the_refusal_and_leave_the_transaction(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        try:
            with transaction.atomic():
                segment.step("write", bodies.body("write"), effect=WRITE, key="k")
        except InsideTransaction:
            segment.step("write", bodies.body("write"), effect=WRITE, key="k")

    assert facts(executed(agent)) == COMPLETED
    assert bodies == ["write"]


@pytest.mark.parametrize("outer", [READ, WRITE])
def test_a_step_inside_the_body_of_a_step_is_refused(bodies: Bodies, outer: ToolEffect) -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            segment.step("inner", bodies.body("inner"), effect=READ)

        segment.step("outer", body, effect=outer)

    run = executed(agent)
    assert run.status == "failed"
    assert "inside the body" in run.error_message
    assert bodies == []


@pytest.mark.parametrize("options", [{"effect": "harmless"}, {"kind": "dream"}])
def test_an_unknown_effect_or_kind_is_refused_before_the_body(
    bodies: Bodies, options: dict[str, Any]
) -> None:
    run = executed(lambda segment: segment.step("step", bodies.body("step"), **options))
    assert (run.status, run.error_class) == ("failed", "ValueError")
    assert bodies == []


@pytest.mark.parametrize(
    "options", [{"arguments": object()}, {"key": "x" * 256}, {"arguments": {1: 2}}, {"key": "\x00"}]
)
def test_what_cannot_be_written_down_is_refused_before_the_body(
    bodies: Bodies, options: dict[str, Any]
) -> None:
    run = executed(lambda segment: segment.step("step", bodies.body("step"), **options))
    assert (run.status, run.error_class, run.pending_effect) == ("failed", "PayloadError", "")
    assert bodies == []


@pytest.mark.server  # SQLite does not check the length of a text
def test_a_stamp_that_fails_starts_no_body(bodies: Bodies) -> None:
    run = executed(
        lambda segment: segment.step("w", bodies.body("w"), effect=WRITE, digest="x" * 65)
    )
    assert facts(run) == NOT_RETRYABLE
    assert bodies == []


def test_a_fence_emptied_by_hand_stops_the_next_write(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            empty_fence_by_hand(segment.run)
            raise SystemExit(1)

        segment.step("write", body, effect=WRITE)

    run = run_to_its_end(agent, SystemExit)
    assert facts(run) == UNCERTAIN


# A segment that ended is dead.


@pytest.mark.parametrize(
    "error", [LOST, SystemExit(1), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_a_swallowed_uncertain_write_does_not_complete(
    bodies: Bodies, error: BaseException
) -> None:
    def agent(segment: Segment) -> str:
        for name in ("write", "read", "another"):
            try:
                segment.step(name, bodies.body(name, error=error), effect=WRITE)
            except BaseException:
                continue
        return "as if nothing had been"

    run = run_to_its_end(agent, type(error))
    assert facts(run) == UNCERTAIN
    assert bodies == ["write"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("effect", [READ, TRANSACTIONAL])
def test_a_swallowed_end_of_the_process_does_not_complete(
    bodies: Bodies, error: BaseException, effect: ToolEffect
) -> None:
    """A queue's timeout is a SystemExit: code that swallows it must not go on working."""

    def agent(segment: Segment) -> str:
        try:
            segment.step("step", bodies.body("step", error=error), effect=effect)
        except BaseException:
            segment.step("after", bodies.body("after"), effect=WRITE)
        return "as if nothing had been"

    run = run_to_its_end(agent, type(error))
    assert facts(run) == REQUEUED
    assert bodies == ["step"]


def test_a_swallowed_lost_lease_does_not_complete(bodies: Bodies) -> None:
    def agent(segment: Segment) -> str:
        lose(segment.run)
        for name in ("one", "two"):
            try:
                segment.step(name, bodies.body(name), effect=WRITE)
            except BaseException:
                continue
        return "as if nothing had been"

    run = executed(agent)
    assert (run.status, run.requeue_count, run.output) == ("queued", 1, None)
    assert bodies == []


def test_a_swallowed_mismatch_does_not_complete(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))

    def changed(segment: Segment) -> str:
        for name in ("two", "three"):
            try:
                segment.step(name, bodies.body(name), effect=WRITE)
            except JournalMismatch:
                continue
        return "as if nothing had been"

    run = execute_again(run, changed)
    assert (run.status, run.error_class) == ("failed", "JournalMismatch")
    assert bodies == ["one"]


def test_a_segment_that_has_ended_executes_nothing_any_more(bodies: Bodies) -> None:
    kept: list[Segment] = []
    run = executed(kept.append)
    assert facts(run) == COMPLETED
    with pytest.raises(SegmentInterrupt):
        kept[0].step("late", bodies.body("late"), effect=WRITE)
    assert bodies == []


# A journal that does not fit.


def stops_after(*names: str, bodies: Bodies) -> Callable[[Segment], None]:
    """An agent that writes these steps and then fails in a way that is tried again."""

    def agent(segment: Segment) -> None:
        for name in names:
            segment.step(name, bodies.body(name, name), effect=WRITE)
        raise LOST

    return agent


def mismatch(run: AgentRun, *words: str) -> None:
    assert (run.status, run.termination_reason) == ("failed", "not_retryable")
    assert run.error_class == "JournalMismatch"
    for word in words:
        assert word in run.error_message


def test_a_read_may_go_before_recorded_steps_but_the_run_does_not_end_well(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))
    run = execute_again(run, lambda segment: segment.step("two", bodies.body("two"), effect=READ))
    mismatch(run, "'one'", "ended")


def test_a_read_that_failed_and_was_tolerated_does_not_keep_the_run_from_resuming(
    bodies: Bodies,
) -> None:
    def agent(segment: Segment) -> str:
        try:
            segment.step("look", fails, effect=READ)
        except KeyError:
            pass
        segment.step("send", bodies.body("send"), effect=WRITE)
        if len(attempts) == 1:
            raise LOST
        return "done"

    attempts: list[str] = []

    def fails(key: str) -> None:
        attempts.append(key)
        raise KeyError(key)

    run = execute_again(executed(agent), agent)
    assert (run.status, bodies) == ("completed", ["send"])


WRITES = [effect for effect in ToolEffect if effect is not READ]


@pytest.mark.parametrize("effect", WRITES)
def test_another_step_than_the_recorded_one_is_never_executed(
    bodies: Bodies, effect: ToolEffect
) -> None:
    run = executed(stops_after("one", bodies=bodies))
    run = execute_again(run, lambda segment: segment.step("two", bodies.body("two"), effect=effect))
    mismatch(run, "'one'", "'two'")
    assert bodies == ["one"]


def test_a_recorded_step_that_is_not_reached_fails_the_run(bodies: Bodies) -> None:
    run = executed(stops_after("one", "two", bodies=bodies))
    run = execute_again(run, lambda segment: segment.step("one", bodies.body("one"), effect=WRITE))
    mismatch(run, "'two'", "ended")
    assert run.output is None


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": {"amount": 200}},
        {"arguments": None},
        {"name": "refund"},
        {"kind": StepKind.MODEL},
    ],
)
def test_other_arguments_than_the_recorded_ones_fail_the_run(
    bodies: Bodies, changed: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"name": "pay", "key": "k", "arguments": {"amount": 100}}

    def agent(segment: Segment) -> None:
        segment.step(body=bodies.body("pay"), effect=WRITE, **asked)
        raise LOST

    run = executed(agent)
    asked |= changed
    run = execute_again(run, agent)
    mismatch(run, "'k'")
    assert bodies == ["pay"]


@pytest.mark.parametrize("changed", [{"arguments": {"amount": 200}}, {"name": "refund"}])
def test_another_attempt_with_other_arguments_fails_before_the_body(
    bodies: Bodies, changed: dict[str, Any]
) -> None:
    """Its idempotency key is the same: the destination would be told something else under it."""
    asked: dict[str, Any] = {"name": "pay", "key": "k", "arguments": {"amount": 100}}

    def agent(segment: Segment) -> None:
        error = LOST if not bodies else None
        segment.step(body=bodies.body("pay", error=error), effect=REPEATABLE, **asked)

    run = executed(agent)
    assert facts(run) == REQUEUED
    asked |= changed
    run = execute_again(run, agent)
    mismatch(run, "'k'")
    assert bodies == ["pay"]


def test_the_effect_that_the_code_declares_now_does_not_matter_to_a_replay(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))
    run = execute_again(run, lambda segment: segment.step("one", bodies.body("one"), effect=READ))
    assert facts(run) == COMPLETED
    assert bodies == ["one"]


def test_steps_are_added_behind_the_recorded_ones(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))

    def longer(segment: Segment) -> None:
        for name in ("one", "two"):
            segment.step(name, bodies.body(name, name), effect=WRITE)

    assert facts(execute_again(run, longer)) == COMPLETED
    assert bodies == ["one", "two"]


def test_a_damaged_result_fails_the_run_and_executes_nothing(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentruns_step SET result = 'nonsense'")
    run = execute_again(run, lambda segment: segment.step("one", bodies.body("one"), effect=WRITE))
    assert (run.status, run.error_class) == ("failed", "PayloadUnreadable")
    assert bodies == ["one"]


def test_code_that_catches_exceptions_does_not_go_on_from_a_damaged_result(bodies: Bodies) -> None:
    run = executed(stops_after("one", bodies=bodies))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentruns_step SET result = 'nonsense'")

    def agent(segment: Segment) -> None:
        try:
            segment.step("one", bodies.body("one"), effect=WRITE)
        except Exception:
            segment.step("instead", bodies.body("instead"), effect=WRITE)

    run = execute_again(run, agent)
    assert (run.status, run.error_class) == ("failed", "PayloadUnreadable")
    assert bodies == ["one"]


# What becomes of a run whose segment ended.


def test_a_recorded_write_is_not_repeated_when_the_run_is_retried(bodies: Bodies) -> None:
    agent = stops_after("write", bodies=bodies)
    run = executed(agent)
    assert (facts(run), run.requeue_count) == (REQUEUED, 1)
    for _round in range(3):
        run = execute_again(run, agent)
    assert (run.status, run.termination_reason) == ("failed", "retries_exhausted")
    assert bodies == ["write"]


def test_an_error_that_a_retry_cannot_cure_ends_the_run(bodies: Bodies) -> None:
    def agent(segment: Segment) -> None:
        segment.step("write", bodies.body("write"), effect=WRITE)
        raise ValueError("a bug")

    run = executed(agent)
    assert facts(run) == NOT_RETRYABLE
    assert (run.error_class, run.error_message) == ("ValueError", "a bug")


def test_a_run_without_a_request_is_not_retried(bodies: Bodies) -> None:
    assert facts(executed(stops_after("write", bodies=bodies), request=None)) == NOT_RETRYABLE


def test_an_output_that_cannot_be_kept_fails_the_run() -> None:
    run = executed(lambda segment: object())
    assert (run.status, run.error_class) == ("failed", "PayloadError")


def test_the_usage_is_kept_with_the_output() -> None:
    def agent(segment: Segment) -> str:
        segment.usage = {"tokens": 7}
        return "output"

    run = AgentRun.objects.get(pk=executed(agent).pk)
    assert run.usage is not None
    assert run.usage.value == {"tokens": 7}


def test_the_request_is_given_to_the_code() -> None:
    run = executed(lambda segment: segment.request, request={"a": ["\x00"]})
    output = AgentRun.objects.get(pk=run.pk).output
    assert output is not None
    assert output.value == {"a": ["\x00"]}


def test_a_step_leaves_no_attempt_behind_where_the_body_was_read_only_and_failed(
    bodies: Bodies,
) -> None:
    run = executed(lambda segment: segment.step("r", bodies.body("r", error=LOST), effect=READ))
    assert facts(run) == REQUEUED
    assert not Step.objects.filter(run=run).exists()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("not a function", "step 'a' has a body of type str"),
        (lambda: "no key", "the body of step 'a' takes no argument"),
    ],
)
def test_a_body_that_can_not_be_called_is_refused_before_its_fence(
    asynchronous: bool, body: Any, said: str
) -> None:
    def agent(segment: Segment) -> Any:
        return segment.step("a", body)

    async def async_agent(segment: Segment) -> Any:
        return await segment.astep("a", body)

    run = executed(async_agent if asynchronous else agent)
    assert (run.status, run.termination_reason) == ("failed", "not_retryable")
    assert said in run.error_message
    assert run.pending_effect == ""
    assert not Step.objects.filter(run=run).exists()


def test_an_effect_that_is_none_is_refused_before_its_body(bodies: Bodies) -> None:
    run = executed(lambda segment: segment.step("a", bodies.body("a"), effect="harmless"))  # type: ignore[arg-type]
    said = "the effect of step 'a': 'harmless' is no effect: use one of read_only, "
    assert said in run.error_message
    assert bodies == []


def test_a_write_that_raises_is_told_how_to_say_that_nothing_happened(bodies: Bodies) -> None:
    run = executed(lambda segment: segment.step("a", bodies.body("a", error=ValueError("no"))))
    assert run.error_message.startswith("a raised ValueError: no (where that is certain")
    assert "raise EffectNotApplied instead" in run.error_message
