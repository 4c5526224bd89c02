"""Today's code goes on with runs whose journals earlier versions wrote, and repeats nothing.

A failure here means: a change would strand every run in flight. Change the code, not the journals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core import serializers
from django.core.management.color import no_style
from django.db import connection

from agentruns import registry
from agentruns.enums import RunStatus, TerminationReason
from agentruns.fields import Payload
from agentruns.models import AgentRun, Event, Step
from nrllm import registration
from tests.nrllm.support import execute, output

from .earlier import JOURNALS, KEY, states
from .sample import AGENT, FUNCTION, Sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nobody_is_woken")]

STORED = sorted(JOURNALS.glob("*.json"))
NOT_RETRYABLE = (RunStatus.FAILED, TerminationReason.NOT_RETRYABLE)

each_version = pytest.mark.parametrize("stored", STORED, ids=lambda path: path.stem)


@pytest.fixture
def nobody_is_woken(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "tests.nrllm.support.NobodyIsWoken"
    given = {**settings.AGENTRUNS, "DISPATCHER": nobody, "ENCRYPTION_KEYS": ["", KEY]}
    settings.AGENTRUNS = given
    monkeypatch.setattr(registration, "_agents", {})
    monkeypatch.setattr(registry, "_agents", {})


def load(stored: Path) -> None:
    for row in serializers.deserialize("json", stored.read_text(encoding="utf-8")):
        row.save()
    with connection.cursor() as cursor:
        for sql in connection.ops.sequence_reset_sql(no_style(), [AgentRun, Step, Event]):
            cursor.execute(sql)


def run_of(agent: str) -> AgentRun:
    run: AgentRun = AgentRun.objects.get(agent=agent)
    return run


def end(run: AgentRun) -> tuple[str, str]:
    return run.status, run.termination_reason


def test_a_journal_of_every_state_of_the_tables_is_stored() -> None:
    """`python -m tests.upgrades` stores the one that is missing."""
    kept = {path.stem for path in STORED}
    assert {state.partition("_")[0] for state in states() if state >= "0006"} <= kept


@each_version
def test_a_run_goes_on_from_it(stored: Path) -> None:
    load(stored)
    sample = Sample(failing=False)
    for agent in (AGENT, FUNCTION):
        run = execute(run_of(agent))
        assert end(run) == (RunStatus.COMPLETED, TerminationReason.COMPLETED), run.error_text
    assert sample.done == ["model 6", "last"]
    assert output(run_of(AGENT)) == "done"
    assert output(run_of(FUNCTION))[-2:] == [7, "last"]


@each_version
def test_a_run_that_it_does_not_fit_fails_before_any_body(stored: Path) -> None:
    load(stored)
    sample = Sample(failing=False, instructions="Be verbose.")
    run = execute(run_of(AGENT))
    assert end(run) == NOT_RETRYABLE
    assert run.error_class == "JournalMismatch"
    assert sample.done == []
    assert run_of(FUNCTION).status == RunStatus.QUEUED


@each_version
def test_a_format_that_is_not_known_fails_that_run_alone(stored: Path) -> None:
    load(stored)
    sample = Sample(failing=False)
    of_the_future = Payload("9:of a version to come")
    Step.objects.filter(run=run_of(AGENT), name="pay").update(result=of_the_future)
    run = execute(run_of(AGENT))
    assert end(run) == NOT_RETRYABLE
    assert run.error_class == "PayloadUnreadable"
    assert sample.done == []
    assert execute(run_of(FUNCTION)).status == RunStatus.COMPLETED
