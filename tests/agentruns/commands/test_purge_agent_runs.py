from __future__ import annotations

import json

from django_q.models import Schedule

from agentruns import tasks
from agentruns.enums import RunStatus
from agentruns.management.commands.install_purge_schedule import NAME
from agentruns.models import AgentRun
from tests.agentruns.test_retention import old

from .conftest import Commands


def test_deletes_and_tells_of_each_batch(command: Commands) -> None:
    for _ in range(3):
        old(RunStatus.COMPLETED)
    said = command("purge_agent_runs", "--settled-days", "1", "--batch-size", "2", "--json")
    assert [json.loads(line)["settled"] for line in said.text.splitlines()] == [2, 3, 3]
    assert not AgentRun.objects.exists()


def test_a_dry_run_says_so(command: Commands) -> None:
    old(RunStatus.QUEUED)
    said = command("purge_agent_runs", "--unfinished-days", "1", "--dry-run")
    assert said.text.startswith("would have been deleted: settled 0, unfinished 1")
    assert AgentRun.objects.count() == 1


def test_without_a_window_it_is_refused(command: Commands) -> None:
    assert "--settled-days" in str(command("purge_agent_runs").failure)


def test_installs_a_schedule_that_does_the_same(command: Commands) -> None:
    said = command("install_purge_schedule", "--settled-days", "90", "--json").json
    assert (said["name"], said["did"]) == (NAME, "created")
    schedule = Schedule.objects.get()
    assert (schedule.func, schedule.schedule_type) == ("agentruns.tasks.purge", Schedule.DAILY)
    assert schedule.kwargs == "settled_days=90.0, q_options={'save': False}"
    assert command("install_purge_schedule", "--settled-days", "90").text.startswith(
        f"{NAME}: unchanged"
    )
    assert command("install_purge_schedule", "--remove", "--json").json["removed"] is True


def test_purging_as_a_task_returns_what_was_done(command: Commands) -> None:
    old(RunStatus.FAILED)
    assert tasks.purge(settled_days=1)["settled"] == 1
