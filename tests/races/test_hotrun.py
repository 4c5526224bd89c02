"""Enqueue, claim and complete, each in one statement."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agentruns import hotrun
from agentruns.conf import conf
from agentruns.enums import EventKind, RunMode, RunStatus
from agentruns.exceptions import GuardedColumns, IdempotencyConflict
from agentruns.fields import Payload
from agentruns.guard import Claim, from_now
from agentruns.models import AgentRun, Event
from agentruns.models.querysets import PAYLOADS
from agentruns.signals import event_recorded
from tests.factories import (
    OWNER,
    empty_fence_by_hand,
    expire,
    fenced,
    history,
    queued,
    reap,
    reread,
    running,
    snapshot,
)
from tests.servers.waiting import wait_until

from .rivals import Rival, holding, second_comes_while, together
from .test_hotpath import database_time

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

OUTPUT = Payload.of({"answer": "It is on its way."})


def in_one_statement(act: Callable[[], Any]) -> Any:
    with CaptureQueriesContext(connection) as sent:
        found = act()
    assert len(sent) == 1, [query["sql"] for query in sent]
    return found


def stored(model: Any, **lookup: Any) -> dict[str, Any]:
    row: dict[str, Any] = model.objects.filter(**lookup).values().get()
    return row


ALIKE = {
    "plain": {},
    "all of it": {
        "mode": RunMode.SYNCHRONOUS,
        "agent_version": "2",
        "idempotency_key": "order 7",
        "requested_by": "shop",
        "correlation_id": "order 7",
        "woken": False,
    },
}


@pytest.mark.parametrize("options", ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("request_", [None, Payload.of({"customer": 7})], ids=["none", "some"])
def test_a_run_is_accepted_as_by_the_portable_form(options: Any, request_: Payload | None) -> None:
    other, _new = AgentRun.objects.enqueue("agent", request_, **options)
    by_portable, its_line = stored(AgentRun, pk=other.pk), stored(Event, run=other)
    other.delete()
    run, new = in_one_statement(lambda: hotrun.enqueue("agent", request_, **options))
    by_statement, line = stored(AgentRun, pk=run.pk), stored(Event, run=run)
    assert new
    own = {"id", "uuid", "created_at", "available_at", "woken_at"}
    assert {k: v for k, v in by_statement.items() if k not in own} == {
        k: v for k, v in by_portable.items() if k not in own
    }
    assert (by_statement["woken_at"] is None) == (by_portable["woken_at"] is None)
    assert by_statement["available_at"] == by_statement["created_at"]
    assert {**line, "id": 0, "run_id": 0, "at": 0} == {**its_line, "id": 0, "run_id": 0, "at": 0}
    assert {name: getattr(run, name) for name in by_statement} == by_statement
    assert not run._state.adding


def test_the_accepted_instance_refuses_what_a_loaded_one_refuses() -> None:
    run, _new = hotrun.enqueue("agent", None)
    run.save()
    run.status = RunStatus.COMPLETED
    with pytest.raises(GuardedColumns, match="status"):
        run.save()


def test_of_many_that_bring_one_key_one_is_new() -> None:
    def accept() -> tuple[AgentRun, bool]:
        return hotrun.enqueue("agent", Payload.of(1), idempotency_key="k")

    found = [rival.outcome() for rival in together(*[accept] * 4)]
    assert sorted(new for _run, new in found) == [False, False, False, True]
    assert {run.pk for run, _new in found} == {AgentRun.objects.get().pk}
    with pytest.raises(IdempotencyConflict):
        hotrun.enqueue("agent", Payload.of(2), idempotency_key="k")


@pytest.mark.parametrize("served", [None, {"another": "1", "agent": ""}])
def test_a_claim_gives_the_stored_run(served: Any) -> None:
    run = queued()
    taken = in_one_statement(lambda: hotrun.claim(run.uuid, OWNER, served))
    assert taken is not None
    mine, held = taken
    assert held == Claim(run.pk, OWNER, 1)
    row = stored(AgentRun, pk=run.pk)
    assert mine.get_deferred_fields() == set(PAYLOADS)
    assert {k: getattr(mine, k) for k in row if k not in PAYLOADS} == {
        k: v for k, v in row.items() if k not in PAYLOADS
    }
    assert (mine.status, mine.has_stored_request) == (RunStatus.RUNNING, True)
    assert mine.started_at is not None
    line = stored(Event, run=run, kind=EventKind.CLAIMED)
    assert (line["actor"], line["epoch"], line["data"]) == (OWNER, 1, None)


def test_a_claim_says_whether_there_is_a_request() -> None:
    run, _new = hotrun.enqueue("agent", None)
    taken = hotrun.claim(run.uuid, OWNER)
    assert taken is not None
    assert not taken[0].has_stored_request


@pytest.mark.usefixtures("form")
def test_a_run_keeps_the_time_at_which_it_began() -> None:
    run, _held = running()
    began = reread(run).started_at
    expire(run)
    reap(run)
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=run.created_at)
    assert AgentRun.objects.claim(run.uuid, OWNER) is not None
    assert reread(run).started_at == began


@pytest.mark.usefixtures("form")
def test_a_run_that_is_not_due_is_not_claimed() -> None:
    run = queued(delay_seconds=60)
    before = snapshot(run)
    assert AgentRun.objects.claim(run.uuid, OWNER) is None
    assert snapshot(run) == before


@pytest.mark.usefixtures("form")
def test_a_run_in_another_status_is_not_claimed() -> None:
    run, held = running()
    run.complete(held, OUTPUT)
    before = snapshot(run)
    assert AgentRun.objects.claim(run.uuid, OWNER) is None
    assert snapshot(run) == before


@pytest.mark.usefixtures("form")
def test_a_claim_that_waited_for_a_move_to_another_version_takes_nothing() -> None:
    run = queued(agent_version="1")
    claim = second_comes_while(
        lambda: run.move_to_version("2", by="ada"),
        lambda: AgentRun.objects.claim(run.uuid, OWNER, {"agent": "1"}),
    )
    assert claim.outcome() is None
    assert reread(run).status == RunStatus.QUEUED


@pytest.mark.usefixtures("form")
def test_a_claim_that_waited_for_a_delay_takes_nothing() -> None:
    run = queued()
    claim = second_comes_while(
        lambda: AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=from_now(60)),
        lambda: AgentRun.objects.claim(run.uuid, OWNER),
    )
    assert claim.outcome() is None
    assert history(run) == ["queued"]


@pytest.mark.usefixtures("form")
def test_a_lease_begins_when_the_claim_has_the_row() -> None:
    run = queued()
    waiting = Rival(lambda: AgentRun.objects.claim(run.uuid, OWNER))
    with holding(lambda: AgentRun.objects.filter(pk=run.pk).write_guarded(woken_at=from_now(0))):
        waiting.start()
        wait_until(waiting.waits_for_a_lock, what="the claim to wait for the row")
        still_waited = database_time()
    mine, _held = waiting.outcome()
    row = reread(run)
    assert row.lease_expires_at is not None
    assert row.lease_expires_at >= still_waited + timedelta(seconds=conf.LEASE_SECONDS)
    assert (mine.lease_expires_at, mine.woken_at) == (row.lease_expires_at, row.woken_at)


def test_a_completion_writes_what_the_portable_form_writes() -> None:
    ends = []
    forms: list[Callable[..., None]] = [AgentRun.complete, hotrun.complete]
    for complete in forms:
        run, held = running()
        complete(run, held, OUTPUT, Payload.of({"requests": 3}))
        row, line = stored(AgentRun, pk=run.pk), stored(Event, run=run, kind="completed")
        assert row["finished_at"] is not None
        own = {"id", "uuid", "created_at", "available_at", "woken_at", "started_at", "finished_at"}
        ends.append(({k: v for k, v in row.items() if k not in own}, line["actor"], line["epoch"]))
    assert ends[0] == ends[1]


def test_a_plain_completion_is_one_statement() -> None:
    run, held = running()
    in_one_statement(lambda: hotrun.complete(run, held, OUTPUT))
    assert reread(run).status == RunStatus.COMPLETED


@pytest.mark.usefixtures("form")
def test_a_completion_that_waited_for_a_requested_cancel_is_a_cancel() -> None:
    run, held = running()
    completion = second_comes_while(
        lambda: AgentRun.objects.filter(pk=run.pk).write_guarded(cancel_requested_at=from_now(0)),
        lambda: run.complete(held, OUTPUT),
    )
    completion.outcome()
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.status, row.output) == (RunStatus.CANCELLED, None)


def test_a_claim_and_a_completion_leave_every_other_run_alone() -> None:
    waiting, (doubtful, _held, _step) = queued(), fenced()
    empty_fence_by_hand(doubtful)
    before = snapshot(waiting), snapshot(doubtful)
    run = queued()
    mine, held = in_one_statement(lambda: hotrun.claim(run.uuid, OWNER))
    in_one_statement(lambda: hotrun.complete(mine, held, OUTPUT))
    assert (snapshot(waiting), snapshot(doubtful)) == before


def test_each_line_of_the_history_is_announced_when_it_is_committed() -> None:
    heard: list[tuple[Any, ...]] = []

    def listen(sender: Any, kind: EventKind, actor: str, epoch: int, **said: Any) -> None:
        heard.append((kind, actor, epoch, said["agent"], said["data"]))

    event_recorded.connect(listen)
    try:
        run, _new = hotrun.enqueue("agent", None, requested_by="shop")
        taken = hotrun.claim(run.uuid, OWNER)
        assert taken is not None
        hotrun.complete(*taken, OUTPUT)
    finally:
        event_recorded.disconnect(listen)
    assert heard == [
        (EventKind.QUEUED, "shop", 0, "agent", {}),
        (EventKind.CLAIMED, OWNER, 1, "agent", {}),
        (EventKind.COMPLETED, OWNER, 1, "agent", {}),
    ]


def test_nothing_is_announced_that_is_rolled_back() -> None:
    heard: list[Any] = []

    def listen(**said: Any) -> None:
        heard.append(said["kind"])

    event_recorded.connect(listen)
    try:
        with transaction.atomic():
            hotrun.enqueue("agent", None)
            transaction.set_rollback(True)
    finally:
        event_recorded.disconnect(listen)
    assert heard == []
    assert not AgentRun.objects.exists()
