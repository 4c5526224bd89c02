from __future__ import annotations

import pytest
from django.test import modify_settings
from django.utils import timezone
from django_q.models import Schedule
from django_q.scheduler import scheduler

from agentruns import tasks
from agentruns.enums import RunStatus
from agentruns.exceptions import AgentRunError
from agentruns.management.commands.install_reaper_schedule import NAME
from agentruns.models import AgentRun
from tests.agentruns.cases import conf, running
from tests.harness.fixtures import StartQCluster
from tests.harness.runs import wait_for_status
from tests.servers.waiting import wait_until

from .conftest import Commands
from .test_reap_stale_agent_runs import fail_to_reap


def test_installs_one_schedule_that_runs_every_minute(command: Commands) -> None:
    said = command("install_reaper_schedule", "--json").json
    assert said == {"name": NAME, "every": "1 min", "did": "created"}
    schedule = Schedule.objects.get()
    assert (schedule.func, schedule.schedule_type) == ("agentruns.tasks.reap", Schedule.MINUTES)
    assert (schedule.minutes, schedule.repeats) == (1, -1)
    assert schedule.next_run <= timezone.now()


def test_installing_it_again_changes_nothing(command: Commands) -> None:
    command("install_reaper_schedule")
    before = Schedule.objects.values().get()
    assert command("install_reaper_schedule", "--json").json["did"] == "unchanged"
    assert Schedule.objects.values().get() == before


def test_installing_it_with_other_minutes_changes_it(command: Commands) -> None:
    command("install_reaper_schedule")
    assert command("install_reaper_schedule", "--minutes", "5", "--json").json["did"] == "changed"
    assert Schedule.objects.get().minutes == 5


def test_repairs_a_schedule_that_was_switched_off_or_doubled(command: Commands) -> None:
    command("install_reaper_schedule")
    Schedule.objects.update(repeats=0)
    Schedule.objects.create(name=NAME, func="agentruns.tasks.reap")
    assert "changed" in command("install_reaper_schedule").text
    assert Schedule.objects.get().repeats == -1


def test_removes_its_own_schedule_and_no_other(command: Commands) -> None:
    other = Schedule.objects.create(name="mine", func="agentruns.tasks.reap")
    command("install_reaper_schedule")
    assert command("install_reaper_schedule", "--remove", "--json").json["removed"] is True
    assert Schedule.objects.get() == other
    assert "there was none" in command("install_reaper_schedule", "--remove").text


def test_without_django_q_it_says_so(command: Commands) -> None:
    with modify_settings(INSTALLED_APPS={"remove": "django_q"}):
        failure = command("install_reaper_schedule").failure
    assert "django_q is not in INSTALLED_APPS" in str(failure)


def test_a_cluster_reaps_by_the_schedule(command: Commands, start_qcluster: StartQCluster) -> None:
    run, _ = running(stale=True)
    command("install_reaper_schedule")
    start_qcluster(q_cluster={"scheduler": True})
    wait_for_status(run, RunStatus.QUEUED, RunStatus.COMPLETED, timeout=60)


def test_reaping_as_a_task_returns_what_was_done(transactional_db: None) -> None:
    running(stale=True)
    with conf(RETRY_BACKOFF_SECONDS=60, RETRY_BACKOFF_MAX_SECONDS=60):
        done = tasks.reap()
    assert done == {"requeued": 1, "dead_lettered": 0, "cancelled": 0, "woken": 0}


def test_reaping_as_a_task_fails_where_a_row_could_not_be_reaped(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _ = running(stale=True)
    good, _ = running(stale=True)
    fail_to_reap(monkeypatch, bad)
    with pytest.raises(AgentRunError, match=f"could not be reaped: 1 .*{bad.uuid}"):
        tasks.reap()
    assert AgentRun.objects.get(pk=good.pk).status == RunStatus.QUEUED


def test_a_schedule_enqueues_runs(transactional_db: None, start_qcluster: StartQCluster) -> None:
    Schedule.objects.create(
        name="every morning",
        func="agentruns.tasks.enqueue",
        args="'echo', {'to': 'Ada'}",
        schedule_type=Schedule.DAILY,
    )
    scheduler()
    assert not Schedule.objects.filter(next_run__lte=timezone.now()).exists()
    start_qcluster()
    run = wait_for_one()
    assert wait_for_status(run, RunStatus.COMPLETED, timeout=60).requested_by == "schedule"
    assert AgentRun.objects.get().output is not None


def wait_for_one() -> AgentRun:
    run: AgentRun | None = wait_until(
        AgentRun.objects.first, 60, lambda: "a run that a schedule enqueued"
    )
    assert run is not None
    return run
