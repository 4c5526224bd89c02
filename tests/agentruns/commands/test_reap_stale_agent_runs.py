from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError

from agentruns import reaper, setreaper
from agentruns.dispatch.django_q import DjangoQDispatcher
from agentruns.enums import RunStatus, TerminationReason
from agentruns.management.commands import reap_stale_agent_runs
from agentruns.management.repeating import termination
from agentruns.models import AgentRun
from agentruns.reaper import ReapReport, sweep
from tests.agentruns.cases import conf, queued, running, writing
from tests.harness.database import end_other_connections
from tests.harness.manage import run_manage
from tests.harness.processes import OwnProcess
from tests.servers.waiting import wait_until

from .conftest import Commands

LONG = 30


def fail_to_reap(monkeypatch: pytest.MonkeyPatch, bad: AgentRun) -> None:
    """Make one row bad: what it becomes can't be written."""
    reap = AgentRun.reap

    def refuse(self: AgentRun) -> Any:
        if self.pk == bad.pk:
            raise ValueError("this row is bad")
        return reap(self)

    def refuse_batch(*args: Any, **options: Any) -> Any:
        raise ValueError("a row of this batch is bad")

    monkeypatch.setattr(AgentRun, "reap", refuse)
    monkeypatch.setattr(setreaper.SetReaper, "reap", refuse_batch)


def test_requeues_a_stale_run_and_dead_letters_one_inside_a_write(command: Commands) -> None:
    idle, _ = running(stale=True)
    inside, _, _ = writing(stale=True)
    said = command("reap_stale_agent_runs", "--json")
    assert said.failure is None
    assert (said.json["requeued"], said.json["dead_lettered"]) == (1, 1)
    assert AgentRun.objects.get(pk=idle.pk).status == RunStatus.QUEUED
    dead = AgentRun.objects.get(pk=inside.pk)
    assert dead.termination_reason == TerminationReason.INTERRUPTED_WRITE


def test_leaves_a_run_alone_whose_lease_has_not_ended(command: Commands) -> None:
    run, _ = running()
    assert command("reap_stale_agent_runs", "--json").json["runs"] == []
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.RUNNING


def test_says_what_it_did_in_words(command: Commands) -> None:
    run, _, _ = writing(stale=True)
    text = command("reap_stale_agent_runs").text
    assert "dead-lettered 1" in text
    assert f"{run.uuid} echo: dead_letter interrupted_write" in text


def test_names_the_runs_that_it_woke_where_they_are_few(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queued(), queued()
    AgentRun.objects.all().write_guarded(woken_at=None)
    monkeypatch.setattr(reaper, "MOST_WOKEN_LISTED", 2)
    with conf(WAKE_AGAIN_SECONDS=600):
        text = command("reap_stale_agent_runs", "--batch-size", "1").text
    assert text.splitlines()[1:] == [f"{run.uuid}: woken" for run in (first, second)]
    for _ in range(3):
        queued()
    AgentRun.objects.all().write_guarded(woken_at=None)
    with conf(WAKE_AGAIN_SECONDS=600):
        said = command("reap_stale_agent_runs", "--batch-size", "1", "--json").json
    assert (said["woken"], said["woken_runs"]) == (5, [])


def test_a_dry_run_changes_nothing(command: Commands) -> None:
    run, _, _ = writing(stale=True)
    said = command("reap_stale_agent_runs", "--dry-run", "--json").json
    assert (said["dry_run"], said["dead_lettered"]) == (True, 1)
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.RUNNING
    assert "would have been" in command("reap_stale_agent_runs", "--dry-run").text


def test_takes_no_more_than_its_limit_in_batches(command: Commands) -> None:
    for _ in range(3):
        running(stale=True)
    limited = command("reap_stale_agent_runs", "--limit", "2", "--batch-size", "1", "--json")
    assert limited.json["requeued"] == 2
    assert command("reap_stale_agent_runs", "--batch-size", "1", "--json").json["requeued"] == 1


def test_reports_a_bad_row_does_the_rest_and_fails(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _ = running(stale=True)
    good, _ = running(stale=True)
    fail_to_reap(monkeypatch, bad)
    said = command("reap_stale_agent_runs", "--json")
    assert said.failure is not None
    assert (said.json["errors"], said.json["requeued"]) == (1, 1)
    assert said.json["runs"][0]["error"] == "ValueError: this row is bad"
    assert AgentRun.objects.get(pk=good.pk).status == RunStatus.QUEUED


def test_wakes_a_due_run_that_nobody_took(command: Commands) -> None:
    queued(delay_seconds=0.000001)
    assert command("reap_stale_agent_runs", "--json").json["woken"] == 1


def test_a_broker_that_is_down_does_not_lift_the_limit(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        queued(delay_seconds=0.000001)
    tried: list[UUID] = []

    def fail(self: DjangoQDispatcher, uuids: list[UUID]) -> None:
        tried.extend(uuids)
        raise ConnectionError("the broker is down")

    monkeypatch.setattr(DjangoQDispatcher, "wake_many", fail)
    assert command("reap_stale_agent_runs", "--limit", "2", "--json").json["woken"] == 0
    assert len(tried) == 2


def unreachable(self: DjangoQDispatcher, what: Any) -> None:
    raise ConnectionError("the broker is down")


def test_wake_ups_that_could_not_be_sent_are_counted_and_fail_it(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        queued(delay_seconds=0.000001)
    monkeypatch.setattr(DjangoQDispatcher, "wake", unreachable)
    monkeypatch.setattr(DjangoQDispatcher, "wake_many", unreachable)
    assert command("reap_stale_agent_runs", "--dry-run").failure is None
    said = command("reap_stale_agent_runs", "--limit", "2", "--json")
    assert (said.json["woken"], said.json["not_sent"], said.json["errors"]) == (0, 2, 0)
    assert str(said.failure) == "wake-ups that could not be sent: 2"
    assert "not-sent 1" in command("reap_stale_agent_runs").text


def test_a_sweep_of_many_says_that_wake_ups_could_not_be_sent_and_goes_on(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued(delay_seconds=0.000001)

    def last_sweep(**options: Any) -> ReapReport:
        os.kill(os.getpid(), signal.SIGTERM)
        return sweep(**options)

    monkeypatch.setattr(DjangoQDispatcher, "wake", unreachable)
    monkeypatch.setattr(reap_stale_agent_runs, "sweep", last_sweep)
    said = command("reap_stale_agent_runs", "--every", "0.001")
    assert said.failure is None
    assert "not-sent 1" in said.text
    assert "wake-ups that could not be sent: 1" in said.errors


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--every", "0"], ["--every", "nan"]])
def test_refuses_numbers_that_make_no_sense(command: Commands, arguments: list[str]) -> None:
    assert command("reap_stale_agent_runs", *arguments).failure is not None


def test_its_exit_code_is_zero_where_all_went_well(transactional_db: None) -> None:
    running(stale=True)
    assert run_manage("reap_stale_agent_runs", "--json").check().json["requeued"] == 1


def test_sweeps_again_after_a_failure_of_the_database(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = []

    def sweep(**options: Any) -> ReapReport:
        sweeps.append(options)
        if len(sweeps) == 1:
            raise OperationalError("the server closed the connection\x1b[2J")
        os.kill(os.getpid(), signal.SIGTERM)
        return ReapReport()

    monkeypatch.setattr(reap_stale_agent_runs, "sweep", sweep)
    said = command("reap_stale_agent_runs", "--every", "0.001", "--json")
    assert said.failure is None
    first, second = [json.loads(line) for line in said.text.splitlines()]
    assert first["failed"].startswith("OperationalError: the server closed")
    assert second["errors"] == 0
    assert "\\x1b" in said.errors


def test_a_quiet_sweep_says_nothing_in_words(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(**options: Any) -> ReapReport:
        os.kill(os.getpid(), signal.SIGINT)
        return ReapReport()

    monkeypatch.setattr(reap_stale_agent_runs, "sweep", sweep)
    assert command("reap_stale_agent_runs", "--every", "1").text == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_of_its_own_ends_cleanly_when_asked(
    transactional_db: None, number: signal.Signals
) -> None:
    run, _, _ = writing(stale=True)
    with OwnProcess("manage.py", "reap_stale_agent_runs", "--every", "0.05", "--json") as reaper:
        ended = AgentRun.objects.filter(pk=run.pk, status=RunStatus.FAILED)
        wait_until(ended.exists, 30, lambda: "the stale run to be dead-lettered")
        reaper.send_signal(number)
        out, errors = reaper.process.communicate(timeout=30)
    assert (reaper.process.returncode, errors) == (0, "")
    sweeps = [json.loads(line) for line in out.splitlines()]
    assert sum(sweep["dead_lettered"] for sweep in sweeps) == 1


@pytest.mark.server
def test_a_process_of_its_own_survives_the_loss_of_its_connection(transactional_db: None) -> None:
    with OwnProcess("manage.py", "reap_stale_agent_runs", "--every", "0.05", "--json") as reaper:
        assert reaper.process.stdout is not None
        assert json.loads(reaper.process.stdout.readline())["errors"] == 0
        assert end_other_connections() >= 1  # of an earlier test, some may not have ended yet
        run, _ = running(stale=True)
        requeued = AgentRun.objects.filter(pk=run.pk, status=RunStatus.QUEUED)
        wait_until(requeued.exists, 30, lambda: "a sweep on a new connection")
        reaper.check()


def test_the_handlers_of_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with termination() as asked_within:
        assert not asked_within(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked_within(10)
        assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_does_not_interrupt_the_waiting_ends_it() -> None:
    """As one does that comes just before it: the interpreter runs no handler until it is over."""
    killed = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with termination() as asked_within:
        killed.start()  # before the block: its thread takes the signal
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            assert asked_within(LONG)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            killed.join()


def test_another_signal_does_not_end_the_waiting() -> None:
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with termination() as asked_within:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not asked_within(0.1)
    finally:
        signal.signal(signal.SIGUSR1, former)
