from __future__ import annotations

import pytest
from django.db import DatabaseError

from agentruns.enums import TERMINAL, RunStatus, TerminationReason
from agentruns.exceptions import LeaseLost
from agentruns.holding import hold_unfinished
from agentruns.models import AgentRun
from tests.agentruns.commands.conftest import Commands, command
from tests.factories import (
    REPEATABLE,
    call,
    fenced,
    history,
    queued,
    reread,
    returned,
    running,
    snapshot,
    step_of,
    with_status,
)
from tests.harness.database import end_own_connection

__all__ = ["command"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_everything_unfinished_is_dead_lettered_and_nothing_else_is_touched() -> None:
    runs = {status: with_status(status) for status in RunStatus}
    before = {status: snapshot(run) for status, run in runs.items() if status in TERMINAL}
    report = hold_unfinished(by="ada", reason="restored", batch_size=2)
    assert (report.reasons, report.errors) == ({"not_retryable": 4}, [])
    for status, run in runs.items():
        if status in TERMINAL:
            assert snapshot(run) == before[status]
        else:
            row = reread(run)
            assert (row.status, row.error_class) == (RunStatus.FAILED, "Held")
            assert row.error_message.startswith("held by ada: restored; ")
            assert run.history().latest("pk").actor == "ada"
            assert history(run)[-1] == "dead_lettered"
    assert not AgentRun.objects.unfinished().exists()


def test_what_was_in_flight_is_an_interrupted_write_with_its_fence_standing() -> None:
    run, _claim, step = fenced()
    repeatable, _claim, _step = fenced(REPEATABLE)
    report = hold_unfinished(by="ada", reason="restored")
    assert report.reasons == {"interrupted_write": 1, "not_retryable": 1}
    row = reread(run)
    assert row.termination_reason == "interrupted_write"
    assert (row.pending_effect, row.pending_step_id) == ("non_idempotent_write", step.pk)
    assert step_of(run).state == "uncertain"
    assert run.former_worker_may_act()
    assert list(AgentRun.objects.unresolved().filter(termination_reason="interrupted_write")) == [
        run
    ]
    assert reread(repeatable).pending_effect == "idempotent_write"


def test_a_worker_that_still_runs_loses_the_run_and_leaves_its_evidence() -> None:
    run, claimed, step = fenced()
    hold_unfinished(by="ada", reason="a copy")
    with pytest.raises(LeaseLost):
        run.record_step(claimed, call(), returned("sent"), step)
    run.add_late_evidence(claimed, step, returned("sent"))
    assert step_of(run).landed_late


def test_a_run_that_cannot_be_held_is_reported_and_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, sound = queued(), queued()
    hold = AgentRun.hold

    def fails_for_one(run: AgentRun, **options: str) -> TerminationReason:
        if run.pk == broken.pk:
            raise DatabaseError("damaged")
        return hold(run, **options)

    monkeypatch.setattr(AgentRun, "hold", fails_for_one)
    report = hold_unfinished(by="ada", reason="restored")
    assert [error["uuid"] for error in report.errors] == [str(broken.uuid)]
    assert (reread(broken).status, reread(sound).status) == ("queued", "failed")


def test_the_command_does_nothing_without_a_yes(command: Commands) -> None:
    run = queued()
    said = command("hold_agent_runs")
    assert "--dry-run, then repeat with --yes" in str(said.failure)
    assert reread(run).status == RunStatus.QUEUED


@pytest.mark.parametrize("given", [(), ("--by", "ada"), ("--by", " ", "--reason", "restored")])
def test_a_yes_says_who_and_why(command: Commands, given: tuple[str, ...]) -> None:
    run = queued()
    failure = command("hold_agent_runs", "--yes", *given).failure
    assert failure is not None
    assert failure.returncode == 2
    assert "--yes needs --" in str(failure)
    assert reread(run).status == RunStatus.QUEUED


def test_a_dry_run_says_what_would_be_held_and_changes_nothing(command: Commands) -> None:
    runs = [queued(), running()[0], fenced()[0]]
    before = [snapshot(run) for run in runs]
    said = command("hold_agent_runs", "--dry-run", "--json").json
    assert said == {
        "dry_run": True,
        "held": 3,
        "reasons": {"not_retryable": 2, "interrupted_write": 1},
        "errors": [],
    }
    assert [snapshot(run) for run in runs] == before


def test_the_command_holds(command: Commands) -> None:
    run = queued()
    text = command("hold_agent_runs", "--yes", "--by", "ada", "--reason", "restored").text
    assert text.splitlines() == ["held: 1", "  not_retryable: 1"]
    assert reread(run).error_class == "Held"


@pytest.mark.server
@pytest.mark.parametrize("dies_at", [0, 2, 4])
def test_a_connection_that_dies_in_a_batch_is_no_reason_to_say_what_did_not_happen(
    monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    runs = [queued() for _ in range(5)]
    hold, held = AgentRun.hold, list[int]()

    def dies_once(run: AgentRun, **options: str) -> TerminationReason:
        held.append(run.pk)
        if held == [one.pk for one in runs[: dies_at + 1]]:
            end_own_connection()
        return hold(run, **options)

    monkeypatch.setattr(AgentRun, "hold", dies_once)
    report = hold_unfinished(by="ada", reason="restored", batch_size=5)
    assert (report.reasons.total(), report.errors) == (5, [])
    assert {reread(run).status for run in runs} == {RunStatus.FAILED}
    assert {history(run).count("dead_lettered") for run in runs} == {1}
