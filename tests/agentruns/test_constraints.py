from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from agentruns.enums import RunStatus
from agentruns.models import AgentRun, Step
from tests.factories import fenced, queued, with_status

pytestmark = pytest.mark.django_db

QUEUED, RUNNING = RunStatus.QUEUED, RunStatus.RUNNING
COMPLETED, FAILED, CANCELLED = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED


def write_by_hand(table: str, pk: int, assignments: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {assignments} WHERE id = %s", [pk])


BROKEN: list[tuple[str, RunStatus, str]] = [
    ("agentruns_known_status", QUEUED, "status = 'asleep'"),
    ("agentruns_known_effect", RUNNING, "pending_effect = 'write'"),
    ("agentruns_running_is_owned", QUEUED, "status = 'running'"),
    ("agentruns_running_is_owned", RUNNING, "claimed_by = ''"),
    ("agentruns_running_is_owned", RUNNING, "lease_expires_at = NULL"),
    ("agentruns_running_is_owned", QUEUED, "claimed_by = 'somebody'"),
    ("agentruns_running_is_owned", COMPLETED, "lease_expires_at = created_at"),
    ("agentruns_terminal_is_finished", QUEUED, "finished_at = created_at"),
    ("agentruns_terminal_is_finished", QUEUED, "termination_reason = 'completed'"),
    ("agentruns_terminal_is_finished", QUEUED, "status = 'failed'"),
    ("agentruns_terminal_is_finished", COMPLETED, "finished_at = NULL"),
    ("agentruns_terminal_is_finished", CANCELLED, "termination_reason = ''"),
    ("agentruns_terminal_is_finished", FAILED, "termination_reason = 'bored'"),
    ("agentruns_terminal_is_finished", FAILED, "status = 'queued'"),
    ("agentruns_fence_stands_where", QUEUED, "pending_effect = 'non_idempotent_write'"),
    ("agentruns_fence_stands_where", COMPLETED, "pending_effect = 'idempotent_write'"),
    ("agentruns_fence_stands_where", CANCELLED, "pending_effect = 'non_idempotent_write'"),
    (
        "agentruns_fence_stands_where",
        RunStatus.WAITING_FOR_INPUT,
        "pending_effect = 'non_idempotent_write'",
    ),
]


@pytest.mark.parametrize(("constraint", "status", "assignments"), BROKEN)
def test_sql_written_by_hand_cannot_break_an_invariant(
    constraint: str, status: RunStatus, assignments: str
) -> None:
    run = with_status(status)
    with pytest.raises(IntegrityError) as refused:
        write_by_hand("agentruns_agentrun", run.pk, assignments)
    assert constraint in str(refused.value)


def test_every_constraint_of_the_run_is_tried_above() -> None:
    checks = {c.name for c in AgentRun._meta.constraints if "idempotency" not in c.name}
    assert checks == {constraint for constraint, _status, _assignments in BROKEN}


@pytest.mark.parametrize(
    "assignments",
    [
        "state = 'recorded'",
        "state = 'recorded', recorded_key = 'another'",
        "recorded_key = 'write'",
    ],
)
def test_a_recorded_attempt_and_only_that_holds_its_key(assignments: str) -> None:
    _run, _claim, step = fenced()
    with pytest.raises(IntegrityError):
        write_by_hand("agentruns_step", step.pk, assignments)


def copy_of(step: Step, **changes: Any) -> Step:
    copied: Step = Step.objects.get(pk=step.pk)
    copied.pk = None
    copied._state.adding = True
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied


def test_an_attempt_exists_once() -> None:
    _run, _claim, step = fenced()
    with pytest.raises(IntegrityError), transaction.atomic():
        copy_of(step).save()


def test_one_attempt_of_a_key_is_recorded_at_most() -> None:
    _run, _claim, step = fenced()
    write_by_hand("agentruns_step", step.pk, "state = 'recorded', recorded_key = 'write'")
    with pytest.raises(IntegrityError), transaction.atomic():
        copy_of(step, attempt=2, state="recorded", recorded_key=step.key).save()


def test_runs_without_an_idempotency_key_do_not_collide() -> None:
    assert queued().pk != queued().pk


def test_no_index_contains_what_a_renewal_or_a_stamp_writes() -> None:
    """Each of them would otherwise touch every index of the row."""
    for index in AgentRun._meta.indexes:
        described = f"{index.fields} {index.condition}"
        assert "lease_expires_at" not in described
        assert "pending" not in described
    for name in ("lease_expires_at", "pending_effect", "pending_step"):
        field: Any = AgentRun._meta.get_field(name)
        assert not field.db_index


@pytest.mark.postgres
def test_renewals_and_stamps_are_heap_only_updates() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'agentruns_agentrun'")
        definitions = " ".join(row[0] for row in cursor.fetchall())
    for column in ("lease_expires_at", "pending_effect", "pending_step_id", "claimed_by"):
        assert column not in definitions
