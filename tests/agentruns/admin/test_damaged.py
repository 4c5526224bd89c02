"""Rows that somebody damaged by hand, in each column: they stay readable, and stop nobody else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.db import DataError, IntegrityError, OperationalError, connection, models, transaction
from django.test import Client

from agentruns import registry
from agentruns.enums import RunStatus, StepKind
from agentruns.fields import PayloadField
from agentruns.models import AgentRun, Event, Step
from agentruns.reaper import sweep
from agentruns.tasks import execute
from tests.agentruns.cases import asking, completed, interrupted, queued, writing
from tests.agentruns.commands.conftest import Commands
from tests.agentruns.hostile import broken

from .conftest import LogIn
from .pages import DESK, LIST, answer_page, page_of, resolve_page
from .test_permissions import ALL, named

TEXTS = [
    "",
    "nonsense",
    "1:",
    "9:null",
    '1:{"a":',
    "1:[]",
    '1:"\\ud800\\u0000"',
    "\u03a9\u202e \x1b[2J",
]
PAYLOADS = [*TEXTS, "1:null", "1:{}", '1:{"approved": 1}', "1:1e999", "1:" + "[" * 100_000]
NUMBERS = [0, 2**31 - 100]  # what counts them may go on
TIMES = ["0001-01-01 00:00:00", "9999-12-31 23:59:59"]
SPARED = {"id", "run", "uuid"}  # what a row is, not what it says

COLUMNS = [
    (model, field.name)
    for model in (AgentRun, Step, Event)
    for field in model._meta.concrete_fields
    if field.name not in SPARED
]
TABLES = [model._meta.db_table for model in (AgentRun, Step, Event)]


def junk_for(field: models.Field[Any, Any]) -> Any:
    """One thing that does not belong there; another one with another seed."""
    if isinstance(field, models.DateTimeField):
        return random.choice(TIMES)
    if isinstance(field, (models.PositiveIntegerField, models.ForeignKey)):
        return random.choice(NUMBERS)
    return random.choice(PAYLOADS if isinstance(field, PayloadField) else TEXTS)


def damage(model: type[models.Model], column: str, junk: Any) -> None:
    """Write it into every row that the database lets it be written into."""
    for pk in model._base_manager.values_list("pk", flat=True):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    f"UPDATE {model._meta.db_table} SET {connection.ops.quote_name(column)} = %s"
                    " WHERE id = %s",
                    [junk, pk],
                )
        except (IntegrityError, DataError, OperationalError):
            continue


def stored() -> list[Any]:
    rows = []
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            rows.append(cursor.fetchall())
    return rows


@pytest.fixture
def runs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> list[AgentRun]:
    """A run of each kind that the pages show; `agent` reads and writes and is asked nothing."""
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
    registry.add(registry.RegisteredAgent("agent", lambda segment: segment.request))
    return [
        queued(agent="agent", request=[1]),
        completed(agent="agent", output="output"),
        interrupted(agent="agent", arguments={"to": "ann"}),
        broken(agent="agent"),
        asking(StepKind.APPROVAL, {"to": "ann"}, agent="agent"),
        asking(arguments={"question": "how many?"}, agent="agent"),
        writing(agent="agent", stale=True)[0],
    ]


def look_everywhere(client: Client, command: Commands, runs: list[AgentRun]) -> None:
    urls = [LIST, DESK, *(named(name)(runs[0]) for name in ("inbox", "dashboard"))]
    urls += [place(run) for run in runs for place in (page_of, resolve_page)]
    urls += [answer_page(run) for run in runs if run.journal().exists()]
    for url in urls:
        assert client.get(url, follow=True).status_code in (200, 403, 404), url
    for run in runs:
        assert command("show_agent_run", str(run.uuid), "--json", "--payloads").text
    assert command("list_agent_runs", "--json").text


@pytest.mark.parametrize(("model", "name"), COLUMNS)
def test_a_damaged_column_leaves_every_row_readable_and_stops_no_worker(
    model: type[models.Model], name: str, log_in: LogIn, runs: list[AgentRun]
) -> None:
    client, field = log_in(*ALL, name="ada"), model._meta.get_field(name)
    assert isinstance(field, models.Field)
    damage(model, field.column or name, junk_for(field))
    before = stored()
    look_everywhere(client, Commands(), runs)
    assert stored() == before, "looking has changed something"
    sweep()
    for run in runs:
        execute(str(run.uuid))
    sound = queued(agent="agent", request=[2])
    execute(str(sound.uuid))
    assert AgentRun.objects.get(pk=sound.pk).status == RunStatus.COMPLETED
