from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django_q.models import OrmQ

from agentruns.api import enqueue
from agentruns.dispatch import dispatcher, immediate, wake_after_commit, wake_all
from agentruns.dispatch.django_q import DjangoQDispatcher
from agentruns.dispatch.immediate import ImmediateDispatcher
from agentruns.models import AgentRun
from agentruns.segment import Segment
from tests.factories import registered, reread_by_uuid

pytestmark = pytest.mark.django_db(transaction=True)

IMMEDIATE = "agentruns.dispatch.immediate.ImmediateDispatcher"

calls: list[UUID] = []


class FailsOnce:
    """A broker that is away for the first message."""

    def wake(self, uuid: UUID) -> None:
        calls.append(uuid)
        if len(calls) == 1:
            raise ConnectionRefusedError


def test_django_q_is_the_default(settings: Any) -> None:
    settings.AGENTRUNS = {}
    assert isinstance(dispatcher(), DjangoQDispatcher)


def test_another_one_is_chosen_in_the_settings(settings: Any) -> None:
    settings.AGENTRUNS = {"DISPATCHER": IMMEDIATE}
    assert isinstance(dispatcher(), ImmediateDispatcher)


def test_one_wake_up_that_cannot_be_sent_does_not_stop_the_rest(settings: Any) -> None:
    settings.AGENTRUNS = {"DISPATCHER": f"{__name__}.FailsOnce"}
    calls.clear()
    uuids = [uuid4(), uuid4(), uuid4()]
    assert wake_all(uuids) == 2
    assert calls == uuids


def test_a_wake_up_waits_for_the_commit() -> None:
    with transaction.atomic():
        wake_after_commit(uuid4())
        assert not OrmQ.objects.exists()
    assert OrmQ.objects.count() == 1


def test_a_wake_up_of_a_transaction_that_rolls_back_is_not_sent() -> None:
    with transaction.atomic():
        wake_after_commit(uuid4())
        transaction.set_rollback(True)
    assert not OrmQ.objects.exists()


def test_without_a_transaction_a_wake_up_is_sent_at_once() -> None:
    wake_after_commit(uuid4())
    assert OrmQ.objects.count() == 1


def test_the_immediate_dispatcher_executes_the_run_where_it_is_woken(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": IMMEDIATE}
    with registered(lambda segment: "done") as agent:
        accepted = enqueue(agent)
    assert reread_by_uuid(accepted.uuid).status == "completed"


def test_many_wake_ups_are_one_statement_in_the_table_of_django_q() -> None:
    uuids = [uuid4() for _ in range(50)]
    with CaptureQueriesContext(connection) as sent:
        assert wake_all(uuids) == 50
    assert len([query for query in sent if query["sql"].startswith("INSERT")]) == 1
    assert {message.task["args"] for message in OrmQ.objects.all()} == {
        (str(uuid),) for uuid in uuids
    }
    assert all(message.lock.year == 1970 for message in OrmQ.objects.all())


class DeafToMany:
    def wake(self, uuid: UUID) -> None:
        calls.append(uuid)

    def wake_many(self, uuids: list[UUID]) -> None:
        raise ConnectionRefusedError


def test_many_wake_ups_that_could_not_be_sent_together_count_as_not_sent(settings: Any) -> None:
    settings.AGENTRUNS = {"DISPATCHER": f"{__name__}.DeafToMany"}
    calls.clear()
    assert wake_all([uuid4(), uuid4()]) == 0
    assert wake_all([uuid4()]) == 1


def test_the_immediate_dispatcher_goes_no_deeper_for_runs_that_each_wake_another(
    settings: Any,
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": IMMEDIATE}
    depths: list[int] = []

    def countdown(segment: Segment) -> int:
        depths.append(immediate._here.depth)
        if segment.request:
            enqueue(segment.run.agent, segment.request - 1)
        return int(segment.request)

    with registered(countdown) as agent:
        enqueue(agent, 30)
    assert len(depths) == 31
    assert max(depths) == immediate.DEEPEST
    assert set(AgentRun.objects.values_list("status", flat=True)) == {"completed"}
