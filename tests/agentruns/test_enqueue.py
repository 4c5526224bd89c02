from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django_q.models import OrmQ

from agentruns import api
from agentruns.api import enqueue
from agentruns.exceptions import IdempotencyConflict, PayloadError, UnknownAgent
from agentruns.fields import Payload
from agentruns.models import AgentRun
from tests.factories import make_due, queued, registered, reread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("form")]


@pytest.fixture
def agent() -> Iterator[str]:
    with registered(lambda segment: segment.request) as name:
        yield name


def messages() -> list[str]:
    """What the broker has to deliver: the arguments of each message."""
    return [message.task["args"][0] for message in OrmQ.objects.order_by("pk")]


def test_an_accepted_run_is_a_row_and_one_message(agent: str) -> None:
    accepted = enqueue(agent, {"a": 1})
    assert accepted.created
    assert AgentRun.objects.get().uuid == accepted.uuid
    assert messages() == [str(accepted.uuid)]


def test_the_message_carries_the_uuid_and_nothing_else(agent: str) -> None:
    accepted = enqueue(agent, {"password": "hunter2"})
    task = OrmQ.objects.get().task
    assert task["args"] == (str(accepted.uuid),)
    assert task["kwargs"] == {}
    assert "hunter2" not in repr(task)


def test_a_transaction_that_rolls_back_leaves_neither_row_nor_message(agent: str) -> None:
    with transaction.atomic():
        enqueue(agent)
        transaction.set_rollback(True)
    assert not AgentRun.objects.exists()
    assert messages() == []


def test_the_message_is_sent_after_the_commit(agent: str) -> None:
    with transaction.atomic():
        accepted = enqueue(agent)
        assert messages() == []
    assert messages() == [str(accepted.uuid)]


@pytest.mark.parametrize("options", [{"delay_seconds": 60}, {"available_at": timezone.now()}])
def test_a_run_for_later_is_woken_by_the_reaper_alone(agent: str, options: Any) -> None:
    accepted = enqueue(agent, **options)
    assert messages() == []
    run = AgentRun.objects.get(uuid=accepted.uuid)
    assert run.woken_at is None
    make_due(run)
    assert AgentRun.objects.take_unwoken(10) == [accepted.uuid]


def test_a_run_is_due_in_the_moment_in_which_it_was_accepted() -> None:
    run = queued()
    assert AgentRun.objects.filter(pk=run.pk, available_at__lte=F("created_at")).exists()


def test_a_wake_up_that_cannot_be_sent_loses_nothing(agent: str, settings: Any) -> None:
    settings.AGENTRUNS = {"DISPATCHER": "nowhere.at.all"}
    accepted = enqueue(agent)
    assert AgentRun.objects.queued().get().uuid == accepted.uuid


def test_an_unknown_agent_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UnknownAgent, match="nobody"):
        enqueue("nobody")
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"request": {1: 2}},
        {"requested_by": "\x00"},
        {"correlation_id": "x" * 201},
        {"idempotency_key": "\ud800"},
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    agent: str, options: dict[str, Any]
) -> None:
    with pytest.raises(PayloadError):
        enqueue(agent, **options)
    assert not AgentRun.objects.exists()


def test_the_same_key_gives_the_same_run_and_no_second_message(agent: str) -> None:
    first = enqueue(agent, {"a": 1, "b": 2}, idempotency_key="k")
    second = enqueue(agent, {"b": 2, "a": 1}, idempotency_key="k")
    assert (first.uuid, first.created) == (second.uuid, True)
    assert not second.created
    assert messages() == [str(first.uuid)]


def test_the_same_key_with_another_request_is_an_error(agent: str) -> None:
    enqueue(agent, {"a": 1}, idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="another request"):
        enqueue(agent, {"a": 2}, idempotency_key="k")
    assert AgentRun.objects.count() == 1


def test_the_keys_of_two_agents_do_not_collide(agent: str) -> None:
    with registered(lambda segment: None) as other:
        assert enqueue(agent, idempotency_key="k").uuid != enqueue(other, idempotency_key="k").uuid


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_every_run_is_new(agent: str, key: str | None) -> None:
    assert enqueue(agent, idempotency_key=key).uuid != enqueue(agent, idempotency_key=key).uuid


class SeesNothingYet(type(AgentRun.objects.all())):  # type: ignore[misc]
    """A queryset whose first look at the key is before the other transaction's commit."""

    looked = False

    def _with_key(self, wanted: AgentRun) -> AgentRun | None:
        if not self.looked:
            self.looked = True
            return None
        found: AgentRun | None = super()._with_key(wanted)
        return found


def test_a_collision_inside_atomic_leaves_the_transaction_usable() -> None:
    first = queued("agent", {"a": 1}, idempotency_key="k")
    with transaction.atomic():
        late = SeesNothingYet(AgentRun)
        found, created = late.enqueue("agent", Payload.of({"a": 1}), idempotency_key="k")
        assert (found.pk, created) == (first.pk, False)
        another = queued()
    assert reread(another).status == "queued"
    assert AgentRun.objects.count() == 2


def test_a_conflict_inside_atomic_leaves_the_transaction_usable(agent: str) -> None:
    enqueue(agent, 1, idempotency_key="k")
    with transaction.atomic():
        with pytest.raises(IdempotencyConflict):
            enqueue(agent, 2, idempotency_key="k")
        enqueue(agent, 3)
    assert AgentRun.objects.count() == 2


def test_the_version_of_the_agent_is_kept() -> None:
    with registered(lambda segment: None, version="2026-11") as agent:
        accepted = enqueue(agent)
    assert AgentRun.objects.get(uuid=accepted.uuid).agent_version == "2026-11"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_in_a_request(
    agent: str, number: float
) -> None:
    """As on the command line: see `Payload` for the rule."""
    with pytest.raises(PayloadError, match="not JSON compliant"):
        enqueue(agent, {"a": [number]})
    with pytest.raises(PayloadError, match="not JSON compliant"):
        api.run(agent, {"a": [number]})
    assert not AgentRun.objects.exists()
