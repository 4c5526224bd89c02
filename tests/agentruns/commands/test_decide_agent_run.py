from __future__ import annotations

import shlex

import pytest

from agentruns.enums import EventKind, RunStatus, StepKind
from agentruns.models import AgentRun
from tests.agentruns.cases import answered, asking
from tests.harness.runs import reread

from .conftest import Commands, Said


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
    assert answered(run) == {"yes": True}


def test_refuses_what_is_no_decision(command: Commands) -> None:
    run = asking(StepKind.APPROVAL)
    assert "--approve or --deny for an approval, --answer for" in str(decide(command, run).failure)
    assert decide(command, run, "--approve", "--deny").failure is not None
    bare = command("decide_agent_run", str(run.uuid), "ask", "--approve")
    assert "--by, --digest" in str(bare.failure)
    other = ("--approve", "--by", "ada", "--digest", "old")
    assert "look at it again" in str(
        command("decide_agent_run", str(run.uuid), "ask", *other).failure
    )
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL


def test_a_decision_of_another_kind_is_told_what_is_asked(command: Commands) -> None:
    approval, question = asking(StepKind.APPROVAL), asking(StepKind.INPUT)
    said = str(decide(command, approval, "--answer", "true").failure)
    assert "this is an approval: give --approve or --deny" in said
    for decision in ("--approve", "--deny"):
        said = str(decide(command, question, decision).failure)
        assert "this is a question: give --answer" in said
    assert reread(approval).status == RunStatus.WAITING_FOR_APPROVAL
    assert reread(question).status == RunStatus.WAITING_FOR_INPUT


def test_a_step_that_is_not_asked_is_told_which_are(command: Commands) -> None:
    run = asking(StepKind.APPROVAL)
    about = ("--by", "ada", "--digest", "x")
    said = str(command("decide_agent_run", str(run.uuid), "sak", "--approve", *about).failure)
    assert "does not wait for 'sak' (any more); it waits for: 'ask'" in said


@pytest.mark.parametrize(
    ("kind", "decisions"),
    [(StepKind.APPROVAL, ["--approve", "--deny"]), (StepKind.INPUT, ["--answer"])],
)
def test_what_it_suggests_can_be_typed(
    command: Commands, kind: StepKind, decisions: list[str]
) -> None:
    run = asking(kind)
    run.journal().update(key="send?1 it's")
    said = command("decide_agent_run", str(run.uuid)).text
    typed = [shlex.split(line) for line in said.splitlines() if " decide_agent_run " in line]
    assert [words[2:5] for words in typed] == [
        [str(run.uuid), "send?1 it's", decision] for decision in decisions
    ]
    digest = run.journal().get().digest
    assert all(words[-4:] == ["--by", "NAME", "--digest", digest] for words in typed)
