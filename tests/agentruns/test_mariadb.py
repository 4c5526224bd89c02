"""Where MariaDB differs, and what keeps the promises there all the same."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction

from agentruns.api import enqueue
from agentruns.enums import RunStatus, StepOutcome
from agentruns.failures import classify
from agentruns.fields import Payload
from agentruns.models import AgentRun, Event, Step
from agentruns.reaper import sweep
from agentruns.segment import Segment
from tests.factories import (
    READ,
    TRANSACTIONAL,
    WRITE,
    execute_again,
    executed,
    expire,
    history,
    lose,
    queued,
    reread,
    running,
    step_of,
)
from tests.harness.database import end_own_connection, own_backend
from tests.project.models import LedgerEntry
from tests.races.rivals import Rival, holding
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]

SESSION = {
    "tx_isolation": "READ-COMMITTED",
    "time_zone": "+00:00",
    "character_set_connection": "utf8mb4",
    "innodb_lock_wait_timeout": 20,
    "idle_transaction_timeout": 60,
}


def asked(sql: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def test_the_session_is_set_as_the_guards_need_it() -> None:
    (values,) = asked("SELECT " + ", ".join(f"@@{name}" for name in SESSION))
    assert dict(zip(SESSION, values, strict=True)) == SESSION
    assert "STRICT_ALL_TABLES" in asked("SELECT @@sql_mode")[0][0]


def test_an_update_counts_the_rows_that_matched() -> None:
    run = queued()
    AgentRun.objects.filter(pk=run.pk).update(requested_by="alice")
    assert AgentRun.objects.filter(pk=run.pk).update(requested_by="alice") == 1


def test_every_text_is_compared_exactly() -> None:
    for model in (AgentRun, Step, Event):
        collations = asked(
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = %s AND collation_name IS NOT NULL",
            model._meta.db_table,
        )
        assert collations == (("utf8mb4_nopad_bin",),), model


@pytest.mark.parametrize("other", ["order-7", "Order-7 ", "Örder-7"])
def test_idempotency_keys_that_a_loose_collation_confuses_are_two(other: str) -> None:
    first = queued(idempotency_key="Order-7")
    second, created = AgentRun.objects.enqueue(
        "agent", Payload.of("another"), idempotency_key=other
    )
    assert created
    assert first.pk != second.pk


@pytest.mark.parametrize("other", ["pay", "Pay ", "Pày"])
def test_keys_of_steps_that_a_loose_collation_confuses_are_two_steps(other: str) -> None:
    bodies: list[str] = []

    def pay(which: str, key: str) -> str:
        bodies.append(which)
        return which

    def agent(segment: Segment) -> list[str]:
        return [
            segment.step("pay", partial(pay, it), key=it, effect=WRITE) for it in ("Pay", other)
        ]

    run = executed(agent)
    assert (run.status, bodies) == ("completed", ["Pay", other])
    assert Step.objects.filter(run=run, recorded_key="Pay").count() == 1


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        ("agentruns_running", ["status", "id"]),
        ("agentruns_due", ["status", "available_at", "id"]),
        ("agentruns_waiting", ["status", "created_at", "id"]),
        ("agentruns_dead_letters", ["status", "termination_reason", "finished_at"]),
    ],
)
def test_what_other_databases_index_where_it_has_a_status_is_led_by_it(
    index: str, columns: list[str]
) -> None:
    found = asked(
        "SELECT column_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
        " AND table_name = 'agentruns_agentrun' AND index_name = %s ORDER BY seq_in_index",
        index,
    )
    assert [name for (name,) in found] == columns


def test_the_sweep_finds_its_runs_by_the_index_of_running_ones() -> None:
    plan = AgentRun.objects.stale().order_by("pk").values_list("pk", flat=True)[:500].explain()
    assert "agentruns_running" in plan


# Errors of the server.


def test_a_connection_that_the_server_ended_is_transient() -> None:
    with pytest.raises(OperationalError) as raised:
        end_own_connection()
    assert classify(raised.value).failure_class == "transient"
    connection.close()


def impatient(seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = %s", [seconds])


def test_a_lock_that_is_not_had_in_time_is_transient_and_leaves_the_connection_usable() -> None:
    run, claim = running()
    impatient(1)
    try:
        with holding(lambda: AgentRun.objects.lock_one(pk=run.pk)):
            with pytest.raises(OperationalError) as raised:
                run.renew(claim)
            assert raised.value.args[0] == 1205
            assert classify(raised.value).failure_class == "transient"
        run.renew(claim)
    finally:
        connection.close()


class Crossing:
    """Another connection that wants the entry which this one has, and has the one that it wants."""

    def __init__(self) -> None:
        self.one, self.two = (
            LedgerEntry.objects.create(run="0" * 32, idempotency_key="", amount=0).pk for _ in "12"
        )
        self.has_two, self.may_cross = threading.Event(), threading.Event()
        self.rival = Rival(self.cross)
        self.rival.start()
        assert self.has_two.wait(20)

    def cross(self) -> None:
        with transaction.atomic():
            # Who has changed more is not the one that the server makes the victim.
            for _ in range(50):
                LedgerEntry.objects.create(run="0" * 32, idempotency_key="rival", amount=0)
            lock_entry(self.two)
            self.has_two.set()
            assert self.may_cross.wait(20)
            lock_entry(self.one)
            transaction.set_rollback(True)

    def run_into(self) -> None:
        lock_entry(self.one)
        self.may_cross.set()
        wait_until(self.rival.waits_for_a_lock, what="the other to wait")
        lock_entry(self.two)


def lock_entry(pk: int) -> None:
    LedgerEntry.objects.select_for_update().get(pk=pk)


def test_a_body_that_swallows_a_deadlock_commits_nothing_and_is_executed_again() -> None:
    """The server has rolled back what the body had written before; the rest must not be recorded."""
    crossing = Crossing()
    deadlocks: list[int] = []

    def body(key: str) -> str:
        LedgerEntry.objects.create(run="1" * 32, idempotency_key=key, amount=100)
        if not deadlocks:
            try:
                crossing.run_into()
            except OperationalError as error:
                deadlocks.append(error.args[0])
        return "entered"

    def agent(segment: Segment) -> Any:
        return segment.step("ledger", body, effect=TRANSACTIONAL)

    run = executed(agent)
    crossing.rival.outcome()
    assert deadlocks == [1213]
    assert (run.status, run.requeue_count) == (RunStatus.QUEUED, 1)
    assert not run.journal().exists()
    assert not LedgerEntry.objects.filter(amount=100).exists()
    run = execute_again(run, agent)
    assert run.status == RunStatus.COMPLETED
    assert LedgerEntry.objects.filter(amount=100).count() == 1


def test_a_deadlock_in_a_batch_of_the_reaper_costs_no_run_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server rolls back the whole batch with it: what the report says must be what happened."""
    crossing = Crossing()
    runs = [stale() for _ in range(3)]
    reap = AgentRun.reap

    def reap_into_a_deadlock(run: AgentRun) -> Any:
        verdict = reap(run)
        if run.pk == runs[1].pk and not crossing.may_cross.is_set():
            crossing.run_into()
        return verdict

    monkeypatch.setattr(AgentRun, "reap", reap_into_a_deadlock)
    report = sweep()
    crossing.rival.outcome()
    assert [(run.uuid, run.action) for run in report.runs] == [
        (str(run.uuid), "requeue") for run in runs
    ]
    assert [reread(run).requeue_count for run in runs] == [1, 1, 1]
    assert [history(run).count("requeued") for run in runs] == [1, 1, 1]


def stale() -> AgentRun:
    run, _claim = running()
    expire(run)
    return run


# Sizes.


def large(of: str) -> str:
    """A text that is stored as JSON in less than MAX_PAYLOAD_BYTES, but not in a statement."""
    packet: int = asked("SELECT @@max_allowed_packet")[0][0]
    return of * (packet // 3 // len(of.encode()))


def test_a_result_that_no_statement_can_hold_is_recorded_as_landed_without_it() -> None:
    text = large("x")
    run = executed(lambda segment: segment.step("write", lambda key: text, effect=WRITE))
    assert (run.status, run.error_class, run.pending_effect) == (
        "failed",
        "LandedWithoutResult",
        "",
    )
    step = step_of(run)
    assert (step.state, step.outcome) == ("recorded", StepOutcome.LANDED_WITHOUT_RESULT)
    assert "max_allowed_packet" in step.error


def test_quotation_marks_count_as_what_they_take_in_a_statement() -> None:
    text = large('"')[: len(large('"')) // 4]
    with pytest.raises(DataError, match="max_allowed_packet"):
        enqueue("echo", text)
    assert enqueue("echo", text[: len(text) // 2]).created


@pytest.mark.parametrize("how", ["read", "late evidence"])
def test_the_largest_payloads_fit_into_the_statements_that_hold_several(how: str) -> None:
    text = "x" * (len(large("x")) - 100)
    if how == "read":
        run = executed(
            lambda segment: len(segment.step("read", lambda key: text, effect=READ, arguments=text))
        )
        assert run.status == "completed"
    else:

        def body(key: str) -> str:
            lose(run_of[0])
            return text

        run_of: list[AgentRun] = []

        def agent(segment: Segment) -> Any:
            run_of.append(segment.run)
            return segment.step("write", body, effect=WRITE, arguments=text)

        late = step_of(executed(agent)).late_result
        assert late is not None
        assert late.value == text


def test_a_connection_has_a_number_by_which_the_server_ends_it() -> None:
    assert own_backend() in [number for (number,) in asked("SELECT connection_id()")]
    assert reread(queued()).status == RunStatus.QUEUED
