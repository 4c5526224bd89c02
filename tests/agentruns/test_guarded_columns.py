from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from agentruns.enums import RunStatus
from agentruns.exceptions import GuardedColumns
from agentruns.models import AgentRun
from agentruns.models.row import UNGUARDED_COLUMNS
from tests.factories import (
    WRITE,
    call,
    claim,
    expire,
    fenced,
    queued,
    reap,
    reread,
    running,
    snapshot,
)

pytestmark = pytest.mark.django_db

GUARDED = sorted(
    {field.name for field in AgentRun._meta.concrete_fields} - UNGUARDED_COLUMNS - {"id"}
)


def test_a_stale_instance_that_is_saved_clears_neither_fence_nor_lease() -> None:
    run = queued()
    stale = AgentRun.objects.get(pk=run.pk)
    _run, claimed = claim(run)
    run.mark_pending_effect(claimed, call())
    before = AgentRun.objects.filter(pk=run.pk).values().get()
    stale.requested_by = "application code"
    stale.save()
    after = AgentRun.objects.filter(pk=run.pk).values().get()
    assert after == before | {"requested_by": "application code"}
    expire(run)
    reap(run)
    assert reread(run).pending_effect == WRITE


def test_a_stale_instance_cannot_bring_a_settled_run_back() -> None:
    run, claimed = running()
    stale = AgentRun.objects.get(pk=run.pk)
    run.cancel(by="somebody")
    stale.save()
    assert reread(run).status == RunStatus.CANCELLED
    assert claimed.epoch == reread(run).claim_epoch


@pytest.mark.parametrize("name", GUARDED)
def test_save_refuses_a_guarded_column_by_name(name: str) -> None:
    run, _claim, _step = fenced()
    before = snapshot(run)
    with pytest.raises(GuardedColumns, match=name):
        AgentRun.objects.get(pk=run.pk).save(update_fields=[name])
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "queued"),
        ("pending_effect", ""),
        ("pending_step", None),
        ("pending_step_id", None),
        ("lease_expires_at", None),
        ("claimed_by", "me"),
        ("claim_epoch", 99),
        ("requeue_count", 0),
        ("resolution", "left"),
        ("request", None),
        ("cancel_requested_at", Now()),
    ],
)
def test_save_refuses_a_guarded_column_that_was_changed_in_memory(name: str, value: Any) -> None:
    run, _claim, _step = fenced()
    before = snapshot(run)
    row = AgentRun.objects.get(pk=run.pk)
    if name == "requeue_count":
        value = 1
    setattr(row, name, value)
    with pytest.raises(GuardedColumns):
        row.save()
    assert snapshot(run) == before


@pytest.mark.parametrize("name", GUARDED)
def test_update_refuses_a_guarded_column(name: str) -> None:
    run, _claim, _step = fenced()
    before = snapshot(run)
    with pytest.raises(GuardedColumns, match=name):
        AgentRun.objects.filter(pk=run.pk).update(**{name: None})
    assert snapshot(run) == before


def write_in_bulk(run: AgentRun) -> None:
    AgentRun.objects.bulk_update([run], ["requested_by", "pending_effect"])


def upsert(run: AgentRun) -> None:
    fresh = AgentRun(uuid=run.uuid, agent=run.agent)
    AgentRun.objects.bulk_create(
        [fresh],
        update_conflicts=True,
        unique_fields=["uuid"],
        update_fields=["status", "claimed_by", "lease_expires_at", "pending_effect"],
    )


def upsert_by_position(run: AgentRun) -> None:
    fresh = AgentRun(uuid=run.uuid, agent=run.agent)
    AgentRun.objects.bulk_create(
        [fresh],
        None,
        False,
        True,
        ["status", "claimed_by", "lease_expires_at", "pending_effect"],
        ["uuid"],
    )


def update_or_create(run: AgentRun) -> None:
    AgentRun.objects.update_or_create(uuid=run.uuid, defaults={"pending_effect": ""})


def update_through_another_manager(run: AgentRun) -> None:
    AgentRun._base_manager.filter(pk=run.pk).update(pending_effect="")


def save_as_if_new(run: AgentRun) -> None:
    AgentRun(pk=run.pk, uuid=run.uuid, agent=run.agent, status="running").save()


def insert_again_with_other_state(run: AgentRun) -> None:
    AgentRun.objects.create(agent="a", status=RunStatus.RUNNING, claimed_by="me")


def insert_many_with_other_state(run: AgentRun) -> None:
    AgentRun.objects.bulk_create([AgentRun(agent="a", pending_effect=WRITE)])


WAYS: list[Callable[[AgentRun], None]] = [
    write_in_bulk,
    upsert,
    upsert_by_position,
    update_or_create,
    update_through_another_manager,
    save_as_if_new,
    insert_again_with_other_state,
    insert_many_with_other_state,
]


@pytest.mark.parametrize("way", WAYS)
def test_there_is_no_way_around_the_guard(way: Callable[[AgentRun], None]) -> None:
    run, _claim, _step = fenced()
    before = snapshot(run)
    with pytest.raises(GuardedColumns):
        way(AgentRun.objects.get(pk=run.pk))
    assert snapshot(run) == before
    assert AgentRun.objects.count() == 1


def test_an_instance_with_the_key_of_another_row_does_not_overwrite_it() -> None:
    """`save()` of a new instance with the primary key of an old row would be an UPDATE."""
    run, _claim, _step = fenced()
    before = snapshot(run)
    fresh = AgentRun(pk=run.pk, uuid=run.uuid, agent="somebody else's")
    with pytest.raises(IntegrityError), transaction.atomic():
        fresh.save()
    assert snapshot(run) == before


def test_save_writes_what_no_transition_owns() -> None:
    run = AgentRun.objects.get(pk=queued().pk)
    run.requested_by, run.correlation_id = "me", "a request"
    run.save()
    assert (reread(run).requested_by, reread(run).correlation_id) == ("me", "a request")
    AgentRun.objects.filter(pk=run.pk).update(requested_by="you")
    assert reread(run).requested_by == "you"


def test_the_error_names_the_columns() -> None:
    with pytest.raises(GuardedColumns) as refused:
        AgentRun.objects.update(status="queued", pending_effect="")
    assert refused.value.columns == ("pending_effect", "status")
    assert "pending_effect, status" in str(refused.value)


def test_the_identifier_is_not_lost_to_an_instance_with_deferred_columns() -> None:
    run, _claim, _step = fenced()
    before = snapshot(run)
    row = AgentRun.objects.only("id").get(pk=run.pk)
    row.requested_by = "me"
    row.save()
    before[0][0]["requested_by"] = "me"
    assert snapshot(run) == before
