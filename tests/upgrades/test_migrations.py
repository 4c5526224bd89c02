"""Every version's tables, full of runs, become today's; and today's code goes on with the runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps as todays
from django.db import connection
from django.db.migrations import (
    AddField,
    AddIndex,
    AlterField,
    AlterModelOptions,
    CreateModel,
    RemoveIndex,
    RunPython,
)
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from agentruns import api
from agentruns.enums import Resolution, RunStatus, TerminationReason
from agentruns.models import AgentRun
from agentruns.reaper import sweep
from agentruns.tasks import execute
from tests.factories import make_due
from tests.nrllm.support import NobodyIsWoken

from .earlier import states
from .population import RUNS, contents, populate

NOBODY = f"{NobodyIsWoken.__module__}.{NobodyIsWoken.__qualname__}"
NEWEST = states()[-1]
COMPLETED = (RunStatus.COMPLETED, TerminationReason.COMPLETED)


@pytest.fixture(params=states())
def tables(request: pytest.FixtureRequest, own_database: None, settings: Any) -> None:
    """A database that has been migrated from this state, in which there were all these runs."""
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": NOBODY}
    migrate("auth")
    before = migrate("agentruns", request.param)
    populate(before)
    kept = contents(before)
    migrate("agentruns", NEWEST)
    assert is_in(contents(todays), kept)


def migrate(app: str, state: str | None = None) -> Any:
    """Migrate; return the models as they are then."""
    executor = MigrationExecutor(connection)
    leaves = [(app, state)] if state else executor.loader.graph.leaf_nodes(app)
    return executor.migrate(leaves).apps


def is_in(contents: dict[str, list[dict[str, Any]]], kept: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether these rows are still there, with every value that they had."""
    return all(
        len(rows) == len(kept[model])
        and all(old.items() <= new.items() for old, new in zip(kept[model], rows, strict=True))
        for model, rows in contents.items()
    )


def named(name: str) -> AgentRun:
    run: AgentRun = AgentRun.objects.get(correlation_id=name)
    return run


def outcome(name: str) -> tuple[str, str]:
    return named(name).status, named(name).termination_reason


def finished(name: str) -> tuple[str, str]:
    """Execute this run to its end, and say which one it was."""
    make_due(named(name))
    execute(str(named(name).uuid))
    return outcome(name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("tables")
def test_every_run_goes_on_from_where_it_was() -> None:
    report = sweep()
    assert not report.failures
    assert outcome("stale in a write") == (
        RunStatus.FAILED,
        TerminationReason.INTERRUPTED_WRITE,
    )
    requeued = {"stale", "stale in a repeatable write"}
    assert {name for name in RUNS if named(name).requeue_count == 1} == {"requeued", *requeued}
    for name in ("queued", "requeued", *sorted(requeued)):
        assert finished(name) == COMPLETED, name
    assert outcome("held") == (RunStatus.RUNNING, "")
    decide()
    for name in ("waiting for input", "exhausted", "interrupted"):
        assert finished(name) == COMPLETED, name
    settled = {name for name in RUNS if outcome(name) == COMPLETED}
    unsettled = {"held", "cancelled", "left", "waiting for approval", "stale in a write"}
    assert settled == set(RUNS) - unsettled
    assert replayed("requeued") == {"written": {"done": "earlier", "key": "earlier"}}


def decide() -> None:
    """What people do: answer, try again, and give a verdict."""
    api.submit_input(named("waiting for input").uuid, "0-ask", 7)
    api.retry(named("exhausted").uuid, by="ada", reason="the host is back")
    run = named("interrupted")
    api.resolve(
        run.uuid,
        Resolution.HAPPENED,
        by="ada",
        reason="it is there",
        digest=run.resolution_digest(),
        result={"done": "write"},
    )


def replayed(name: str) -> Any:
    return api.status(named(name).uuid).output


@pytest.mark.django_db(transaction=True)
def test_tables_can_be_taken_back_to_every_state(own_database: None, settings: Any) -> None:
    """So that a deploy that failed half-way can be undone, with nothing in the rows changed."""
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": NOBODY}
    migrate("auth")
    populate(migrate("agentruns", NEWEST))
    kept = contents(todays)
    migrate("agentruns", states()[0])
    migrate("agentruns", NEWEST)
    assert is_in(contents(todays), kept)


# What an earlier version's statements go on with beside it.
HARMLESS = (AlterModelOptions, AddIndex, CreateModel, RemoveIndex, RunPython)


def test_migrations_after_the_first_leave_earlier_workers_their_tables() -> None:
    loader = MigrationLoader(None)
    for name in states()[1:]:
        migration = loader.get_migration("agentruns", name)
        state = loader.project_state([("agentruns", name)], at_end=False)
        for operation in migration.operations:
            after = state.clone()
            operation.state_forwards("agentruns", after)
            assert isinstance(operation, HARMLESS) or adds_only(operation, state, after), (
                f"{name}: {operation.describe()}"
            )
            state = after


def adds_only(operation: Any, before: Any, after: Any) -> bool:
    """Whether an INSERT that does not know of this column, or knows it as it was, still works."""
    if not isinstance(operation, (AddField, AlterField)):
        return False
    model = operation.model_name_lower
    field = after.apps.get_model("agentruns", model)._meta.get_field(operation.name)
    if isinstance(operation, AddField):
        return bool(field.null or field.has_db_default() or field.many_to_many)
    former = before.apps.get_model("agentruns", model)._meta.get_field(operation.name)
    editor: Any = connection.SchemaEditorClass(connection, collect_sql=True)
    return not editor._field_should_be_altered(former, field)
