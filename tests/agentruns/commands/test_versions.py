from __future__ import annotations

from django_q.models import OrmQ

from agentruns.guard import from_now
from agentruns.models import AgentRun
from tests.agentruns.cases import failed, interrupted, queued, running
from tests.harness.runs import history, reread

from .conftest import Commands


def test_moves_each_run_and_says_of_each_refusal_why(command: Commands) -> None:
    waits, taken = queued(), running()[0]
    OrmQ.objects.all().delete()
    said = command("move_agent_run", str(waits.uuid), str(taken.uuid), "--to", "2", "--by", "ada")
    assert said.text.splitlines() == [
        f"{waits.uuid}: moved",
        f"run {taken.uuid} is running; it can't be moved",
    ]
    assert "refused: 1 of 2" in str(said.failure)
    assert reread(waits).agent_version == "2"
    assert [task.args() for task in OrmQ.objects.all()] == [(str(waits.uuid),)]


def test_gives_runs_up(command: Commands) -> None:
    run = queued()
    said = command("fail_agent_run", str(run.uuid), "--by", "ada", "--reason", "gone", "--json")
    assert said.json == {"uuid": str(run.uuid), "done": "failed", "refused": ""}
    assert said.failure is None
    assert reread(run).error_message == "failed by ada: gone"


def test_a_person_and_a_reason_are_asked_for(command: Commands) -> None:
    run = queued()
    assert "--reason" in str(command("fail_agent_run", str(run.uuid), "--by", "ada").failure)
    assert "--by" in str(command("move_agent_run", str(run.uuid), "--to", "2").failure)
    assert history(run) == ["queued"]


def test_lists_what_nobody_took(command: Commands) -> None:
    _fresh, old = queued(), queued()
    AgentRun.objects.filter(pk=old.pk).write_guarded(available_at=from_now(-3600))
    said = command("list_agent_runs", "--untaken", "--json").json
    assert [run["uuid"] for run in said] == [str(old.uuid)]


def test_shows_that_nobody_took_it(command: Commands) -> None:
    fresh, old = queued(), queued()
    AgentRun.objects.filter(pk=old.pk).write_guarded(available_at=from_now(-3600))
    for run, untaken in ((fresh, False), (old, True)):
        assert (
            "due and not taken since" in command("show_agent_run", str(run.uuid)).text
        ) is untaken
        said = command("show_agent_run", str(run.uuid), "--json").json
        assert said["untaken"] is untaken


def test_shows_that_another_version_is_needed(command: Commands) -> None:
    run, fits = queued(), queued()
    AgentRun.objects.filter(pk=run.pk).write_guarded(agent_version="1")
    said = command("show_agent_run", str(run.uuid))
    assert "needs version '1'; this process has version '' of this agent" in said.text
    AgentRun.objects.filter(pk=run.pk).write_guarded(agent="gone")
    assert "this process does not have this agent" in command("show_agent_run", str(run.uuid)).text
    assert "needs version" not in command("show_agent_run", str(fits.uuid)).text
    assert command("show_agent_run", str(run.uuid), "--json").json["served_here"] is None


def test_a_list_says_of_a_queued_run_which_version_it_waits_for(command: Commands) -> None:
    run = queued()
    command("move_agent_run", str(run.uuid), "--to", "2", "--by", "ada")
    said = command("list_agent_runs").text
    assert "not served by this code" in said
    assert f"{run.agent} 2" in said


def test_tries_dead_lettered_runs_again_and_refuses_one_in_doubt(command: Commands) -> None:
    run, doubtful = failed(), interrupted()
    said = command(
        "retry_agent_run", str(run.uuid), str(doubtful.uuid), "--by", "ada", "--reason", "repaired"
    )
    assert said.text.splitlines()[0] == f"{run.uuid}: queued again"
    assert "refused: 1 of 2" in str(said.failure)
    assert reread(run).status == "queued"
    assert reread(doubtful).status == "failed"
    assert "retried" in history(run)
