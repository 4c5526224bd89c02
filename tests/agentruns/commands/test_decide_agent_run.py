from __future__ import annotations

from typing import Any

import pytest

from agentruns.enums import EventKind, RunStatus, StepKind, ToolEffect
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step, StepCall
from tests.agentruns.cases import running
from tests.harness.runs import reread

from .conftest import Commands, Said


def asking(kind: StepKind, arguments: Any = "sure?") -> AgentRun:
    run, claim = running()
    stored = Payload.of(arguments)
    run.ask(claim, StepCall("ask", "ask", kind, ToolEffect.READ_ONLY, stored, stored.digest, 1))
    run.suspend(claim)
    return reread(run)


def decide(command: Commands, run: AgentRun, *decision: str) -> Said:
    asked = command("decide_agent_run", str(run.uuid), "--json").json["questions"][0]
    about = ("--by", "ada", "--digest", asked["digest"])
    return command("decide_agent_run", str(run.uuid), asked["key"], *decision, *about, "--json")


def test_shows_what_is_asked(command: Commands) -> None:
    run = asking(StepKind.APPROVAL, {"to": "ada"})
    text = command("decide_agent_run", str(run.uuid)).text
    assert 'arguments: {"to": "ada"}' in text
    assert "--digest" in text


@pytest.mark.parametrize(
    ("decision", "kind"), [("--approve", EventKind.GRANTED), ("--deny", EventKind.DENIED)]
)
def test_decides_on_a_call(command: Commands, decision: str, kind: EventKind) -> None:
    run = asking(StepKind.APPROVAL)
    said = decide(command, run, decision)
    assert said.json == {"uuid": str(run.uuid), "step": "ask", "status": "queued"}
    assert run.events.get(kind=kind).actor == "ada"


def test_answers_a_question(command: Commands) -> None:
    run = asking(StepKind.INPUT)
    decide(command, run, "--answer", '{"yes": true}')
    result = Step.objects.get(run=run).result
    assert result is not None
    assert result.value == {"yes": True}


def test_refuses_what_is_no_decision(command: Commands) -> None:
    run = asking(StepKind.APPROVAL)
    assert "--approve, --deny or --answer" in str(decide(command, run).failure)
    assert decide(command, run, "--approve", "--deny").failure is not None
    bare = command("decide_agent_run", str(run.uuid), "ask", "--approve")
    assert "--by, --digest" in str(bare.failure)
    other = ("--approve", "--by", "ada", "--digest", "old")
    assert "look at it again" in str(
        command("decide_agent_run", str(run.uuid), "ask", *other).failure
    )
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL
