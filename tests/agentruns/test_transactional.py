from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from agentruns.api import enqueue
from agentruns.enums import StepOutcome
from agentruns.exceptions import EffectNotApplied
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.factories import (
    TRANSACTIONAL,
    WRITE,
    execute_again,
    executed,
    lose,
    step_of,
)
from tests.project.models import LedgerEntry

pytestmark = pytest.mark.django_db(transaction=True)

LOST = ConnectionResetError("the other side is away")


def enter(segment: Segment, key: str) -> str:
    LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=100)
    return "entered"


def entries() -> int:
    return LedgerEntry.objects.count()


def test_the_effect_and_its_step_commit_together() -> None:
    def agent(segment: Segment) -> Any:
        return segment.step("ledger", lambda key: enter(segment, key), effect=TRANSACTIONAL)

    run = executed(agent)
    assert run.status == "completed"
    step = step_of(run, "ledger")
    assert (step.state, step.outcome) == ("recorded", StepOutcome.RETURNED)
    assert LedgerEntry.objects.get().idempotency_key == step.idempotency_key


def test_it_is_not_repeated_when_the_run_is_retried() -> None:
    rounds: list[int] = []

    def agent(segment: Segment) -> None:
        segment.step("ledger", lambda key: enter(segment, key), effect=TRANSACTIONAL)
        rounds.append(1)
        if len(rounds) == 1:
            raise LOST

    run = execute_again(executed(agent), agent)
    assert (run.status, entries()) == ("completed", 1)


def test_what_the_body_wrote_before_it_raised_is_rolled_back() -> None:
    rounds: list[int] = []

    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            enter(segment, key)
            rounds.append(1)
            if len(rounds) == 1:
                raise LOST

        segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, run.pending_effect, entries()) == ("queued", "", 0)
    assert (execute_again(run, agent).status, entries()) == ("completed", 1)


def test_code_may_catch_the_exception_and_go_on() -> None:
    def agent(segment: Segment) -> str:
        def body(key: str) -> None:
            enter(segment, key)
            raise IntegrityError("out of stock")

        try:
            segment.step("ledger", body, effect=TRANSACTIONAL)
        except IntegrityError:
            return "out of stock"
        return "unreachable"

    assert (executed(agent).status, entries()) == ("completed", 0)


def test_not_applied_is_rolled_back_and_recorded() -> None:
    def agent(segment: Segment) -> str:
        def body(key: str) -> None:
            enter(segment, key)
            raise EffectNotApplied("no money")

        try:
            segment.step("ledger", body, effect=TRANSACTIONAL)
        except EffectNotApplied as said:
            return str(said.answer)
        return "unreachable"

    run = executed(agent)
    assert (run.status, entries()) == ("completed", 0)
    assert step_of(run, "ledger").outcome == StepOutcome.EFFECT_NOT_APPLIED


@pytest.mark.server  # on SQLite the body's transaction holds the only write lock
def test_a_lost_guard_rolls_the_effect_back() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            enter(segment, key)
            in_another_thread(lambda: lose(segment.run))

        segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, run.requeue_count, entries()) == ("queued", 1, 0)
    assert not Step.objects.filter(run=run).exists()


@pytest.mark.server
def test_a_cancel_during_the_body_rolls_the_effect_back() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            enter(segment, key)
            in_another_thread(lambda: segment.run.cancel(by="somebody"))

        segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, entries()) == ("cancelled", 0)


@pytest.mark.server
def test_the_row_is_not_locked_while_the_body_runs() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> None:
            enter(segment, key)
            in_another_thread(lambda: segment.run.renew(segment.claim))

        segment.step("ledger", body, effect=TRANSACTIONAL)

    assert executed(agent).status == "completed"


def in_another_thread(function: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def run() -> None:
        try:
            function()
        finally:
            connections["default"].close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(timeout=20)


def test_a_result_that_cannot_be_kept_rolls_the_effect_back() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> object:
            enter(segment, key)
            return object()

        segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, run.error_class, entries()) == ("failed", "PayloadError", 0)


def refused(body: Any) -> AgentRun:
    """A run whose transactional body does what it may not."""
    acted: list[str] = []

    def agent(segment: Segment) -> None:
        def write(key: str) -> Any:
            enter(segment, key)
            return body(acted)

        segment.step("ledger", write, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, run.termination_reason) == ("failed", "not_retryable")
    assert entries() == 0
    assert not Step.objects.filter(run=run).exists()
    assert acted == []
    return run


def test_a_callback_for_after_the_commit_is_refused_and_never_called() -> None:
    run = refused(lambda acted: transaction.on_commit(lambda: acted.append("e-mail")))
    assert "on_commit" in run.error_message


def test_a_run_enqueued_in_the_body_is_refused_with_its_wake_up() -> None:
    from tests.factories import registered

    with registered(lambda segment: None) as other:
        run = refused(lambda acted: str(enqueue(other).uuid))
    assert "on_commit" in run.error_message
    assert AgentRun.objects.count() == 1


async def something() -> None: ...


def test_a_body_that_returns_an_awaitable_is_refused() -> None:
    made = something()
    run = refused(lambda acted: made)
    made.close()
    assert "awaitable" in run.error_message


@pytest.fixture
def other_database(tmp_path: Path) -> Iterator[str]:
    connections.settings["other"] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "other.sqlite3"),
        "OPTIONS": {},
    }
    yield "other"
    connections["other"].close()
    del connections["other"]
    del connections.settings["other"]


def create_table(alias: str) -> None:
    connections[alias].connect()  # Django's test cases forbid to open it in passing
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int)")


def test_a_write_to_another_database_is_refused(other_database: str) -> None:
    def elsewhere(acted: list[str]) -> None:
        create_table(other_database)
        acted.append("wrote elsewhere")

    run = refused(elsewhere)
    assert run.error_class == "AgentRunError"
    assert "used database 'other'" in run.error_message


def test_another_database_may_be_used_again_afterwards(other_database: str) -> None:
    def agent(segment: Segment) -> str:
        segment.step("ledger", lambda key: enter(segment, key), effect=TRANSACTIONAL)
        segment.step("elsewhere", lambda key: create_table(other_database), effect=WRITE)
        return "done"

    run = executed(agent)
    assert run.status == "completed", run.error_message


def test_a_body_that_hides_a_database_error_does_not_commit() -> None:
    def agent(segment: Segment) -> None:
        def body(key: str) -> str:
            enter(segment, key)
            try:
                with transaction.atomic(savepoint=False):
                    raise IntegrityError
            except IntegrityError:
                return "as if nothing had been"

        segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    assert (run.status, entries()) == ("failed", 0)
