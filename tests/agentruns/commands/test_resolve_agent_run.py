from __future__ import annotations

import pytest

from agentruns.enums import EventKind, Resolution, RunStatus, StepState
from agentruns.models import AgentRun, Step
from agentruns.reaper import sweep
from tests.agentruns.cases import failed, interrupted, writing
from tests.harness.runs import reread

from .conftest import Commands, Said


def resolve(command: Commands, run: AgentRun, verdict: str, *more: str) -> Said:
    digest = command("resolve_agent_run", str(run.uuid), "--json").json["digest"]
    about = ("--by", "ada", "--reason", "asked", "--digest", digest)
    return command("resolve_agent_run", str(run.uuid), verdict, *about, *more, "--json")


def test_shows_the_write_in_doubt(command: Commands) -> None:
    run = interrupted(arguments={"to": "ada\x1b"})
    said = command("resolve_agent_run", str(run.uuid))
    assert '"to": "ada\\u001b"' in said.text
    assert "its former worker is gone" in said.text
    assert run.resolution_digest() in said.text


def test_it_happened(command: Commands) -> None:
    run = interrupted()
    said = resolve(command, run, "happened", "--result", '{"id": 7}')
    assert said.json == {"uuid": str(run.uuid), "verdict": "happened", "status": "queued"}
    step = Step.objects.get(run=run)
    assert step.result is not None
    assert (step.state, step.result.value) == (StepState.RECORDED, {"id": 7})
    assert run.events.get(kind=EventKind.RESOLVED).actor == "ada"


def test_it_did_not_happen(command: Commands) -> None:
    run = interrupted()
    assert resolve(command, run, "did-not-happen").json["status"] == "queued"
    assert Step.objects.get(run=run).state == StepState.NOT_APPLIED


def test_it_is_left(command: Commands) -> None:
    run = interrupted()
    assert resolve(command, run, "left").json["status"] == "failed"
    assert reread(run).resolution == Resolution.LEFT


def test_while_the_worker_may_act_it_wants_a_confirmation(command: Commands) -> None:
    run = writing(stale=True)[0]
    sweep()
    assert "MAY STILL ACT" in command("resolve_agent_run", str(run.uuid)).text
    assert "may still be inside" in str(resolve(command, run, "did-not-happen").failure)
    assert resolve(command, run, "did-not-happen", "--worker-may-act").failure is None


@pytest.mark.parametrize("more", [(), ("--result", "{")])
def test_it_happened_needs_a_result(command: Commands, more: tuple[str, ...]) -> None:
    run = interrupted()
    assert resolve(command, run, "happened", *more).failure is not None
    assert reread(run).status == RunStatus.FAILED


def test_a_verdict_needs_who_why_and_on_what(command: Commands) -> None:
    run = interrupted()
    said = command("resolve_agent_run", str(run.uuid), "left", "--reason", "x")
    assert "--by, --digest" in str(said.failure)
    stale = ("--by", "ada", "--reason", "x", "--digest", "old")
    said = command("resolve_agent_run", str(run.uuid), "left", *stale)
    assert "look at it again" in str(said.failure)


def test_a_run_without_a_write_in_doubt(command: Commands) -> None:
    said = command("resolve_agent_run", str(failed().uuid))
    assert "no interrupted write" in str(said.failure)
