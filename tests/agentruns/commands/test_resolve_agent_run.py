from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from agentruns import registry
from agentruns.conf import conf as app_conf
from agentruns.enums import EventKind, Resolution, RunStatus, StepState
from agentruns.models import AgentRun, Step
from agentruns.reaper import sweep
from agentruns.registry import RegisteredAgent
from tests.agentruns.cases import conf, failed, interrupted, running, told_too_early, writing
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
    assert "its former worker counts as gone" in said.text
    assert run.resolution_digest() in said.text


def test_it_happened(command: Commands) -> None:
    run = interrupted()
    said = resolve(command, run, "happened", "--result", '{"id": 7}')
    assert said.json == {
        "uuid": str(run.uuid),
        "verdict": "happened",
        "effect": "takes_effect",
        "status": "queued",
    }
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
    shown = command("resolve_agent_run", str(run.uuid), "--json").json
    longest = timedelta(seconds=app_conf.MAX_STEP_SECONDS)
    until = datetime.fromisoformat(shown["former_worker_may_act_until"])
    assert until == run.events.get(kind="dead_lettered").at + longest
    said = command("resolve_agent_run", str(run.uuid)).text
    assert f"MAY STILL ACT until {until:%Y-%m-%d %H:%M:%S}" in said
    refusal = str(resolve(command, run, "did-not-happen").failure)
    assert f"may still be inside the write: wait until {until:%Y-%m-%d %H:%M:%S}" in refusal
    assert "--worker-may-act" in refusal
    assert resolve(command, run, "did-not-happen", "--worker-may-act").failure is None


@pytest.mark.parametrize(
    "more", [(), ("--result", "{"), ("--result", "1e999"), ("--result", "NaN")]
)
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


@pytest.mark.parametrize("write", [False, True])
def test_a_run_that_nobody_reaped_says_what_to_do(command: Commands, write: bool) -> None:
    run = writing(stale=True)[0] if write else running(stale=True)[0]
    verdict = ("left", "--by", "ada", "--reason", "x", "--digest", "old")
    for more in ((), verdict):
        refusal = str(command("resolve_agent_run", str(run.uuid), *more).failure)
        assert "its lease ran out at 2" in refusal
        assert "no reaper has swept since: run manage.py reap_stale_agent_runs" in refusal
    alive = str(command("resolve_agent_run", str(writing()[0].uuid)).failure)
    assert "has no interrupted write to resolve" in alive


def test_a_second_person_says_the_same(command: Commands) -> None:
    run = interrupted()
    digest = run.resolution_digest()
    left = (str(run.uuid), "left", "--reason", "nobody\x1b will miss it", "--digest", digest)
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        assert "two persons decide" in command("resolve_agent_run", str(run.uuid)).text
        said = command("resolve_agent_run", *left, "--by", "ada").text
        assert "proposed; it takes effect when another person" in said
        shown = command("resolve_agent_run", str(run.uuid))
        assert "ada proposed left, because: nobody\\x1b will miss it" in shown.text
        proposal = command("resolve_agent_run", str(run.uuid), "--json").json["proposal"]
        assert (proposal["by"], proposal["verdict"], proposal["stands"]) == ("ada", "left", True)
        again = command("resolve_agent_run", *left, "--by", "ada").failure
        assert "another person must say the same" in str(again)
        assert reread(run).resolution == ""
        said_json = command("resolve_agent_run", *left, "--by", "grace", "--json").json
    assert said_json["effect"] == "takes_effect"
    assert reread(run).resolution == Resolution.LEFT
    text = command("show_agent_run", str(run.uuid)).text
    assert "resolution_proposed by ada" in text
    assert "resolved by grace" in text
    assert "proposed_by=ada" in text


def test_another_verdict_is_another_proposal(command: Commands) -> None:
    run = interrupted()
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        resolve(command, run, "left")
        digest = run.resolution_digest()
        about = ("--by", "grace", "--reason", "asked", "--digest", digest)
        said = command("resolve_agent_run", str(run.uuid), "did-not-happen", *about)
    assert "proposed in place of the former proposal" in said.text
    assert reread(run).status == RunStatus.FAILED


def test_what_a_result_is_held_to_is_shown(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = RegisteredAgent(
        "strict", lambda segment: None, result_schema=lambda step, kind: {"type": "integer"}
    )
    monkeypatch.setattr(registry, "_agents", {"strict": strict})
    run = interrupted(agent="strict")
    assert 'held to {"type": "integer"}' in command("resolve_agent_run", str(run.uuid)).text
    assert command("resolve_agent_run", str(run.uuid), "--json").json["result_schema"] == {
        "type": "integer"
    }
    monkeypatch.setattr(registry, "_agents", {})
    assert command("resolve_agent_run", str(run.uuid), "--json").json["result_schema"] is None


def test_it_tells_a_testimony_that_came_too_early(command: Commands) -> None:
    run = told_too_early()
    write = command("resolve_agent_run", str(run.uuid), "--json").json["write"]
    assert (write["testimony"], write["testimony_note"]) == ("too_early", "no such key")
    assert write["asked_again_at"]
    text = command("resolve_agent_run", str(run.uuid)).text
    for said in ("testimony: too_early", "testimony_note: no such key", "asked_again_at: "):
        assert said in text
