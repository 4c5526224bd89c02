from __future__ import annotations

from uuid import uuid4

from agentruns.enums import EventKind, RunStatus
from agentruns.models import AgentRun
from tests.agentruns.cases import completed, queued, writing

from .conftest import Commands


def test_cancels_a_queued_run_and_says_by_whom(command: Commands) -> None:
    run = queued()
    said = command("cancel_agent_run", str(run.uuid), "--by", "ada", "--json")
    assert said.json == {"uuid": str(run.uuid), "status": "cancelled"}
    assert AgentRun.objects.get().status == RunStatus.CANCELLED
    assert run.events.get(kind=EventKind.CANCELLED).actor == "ada"


def test_says_that_a_run_inside_a_write_is_cancelled_later(command: Commands) -> None:
    run, _, _ = writing()
    said = command("cancel_agent_run", str(run.uuid))
    assert "is inside a write" in said.text
    assert AgentRun.objects.get().cancel_requested_at is not None


def test_refuses_a_completed_run(command: Commands) -> None:
    run = completed()
    assert command("cancel_agent_run", str(run.uuid)).failure is not None
    assert AgentRun.objects.get().status == RunStatus.COMPLETED


def test_says_that_there_is_no_such_run(command: Commands) -> None:
    missing = uuid4()
    assert f"there is no run {missing}" in str(command("cancel_agent_run", str(missing)).failure)
    assert "'x' is not a uuid" in str(command("cancel_agent_run", "x").failure)
