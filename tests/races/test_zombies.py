from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from agentruns.enums import RunStatus, ToolEffect
from agentruns.exceptions import LeaseLost
from agentruns.models import AgentRun
from tests.factories import (
    OWNER,
    call,
    claim,
    expire,
    fenced,
    make_due,
    reap,
    reread,
    returned,
    running,
    snapshot,
    step_of,
)
from tests.harness.environment import subprocess_environment
from tests.servers.process import ROOT

from .rivals import reap_in_transaction, second_comes_while
from .zombie import attempts

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("form")]


def in_another_process(run: AgentRun, epoch: int) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.races.zombie", str(run.uuid), OWNER, str(epoch)],
        cwd=ROOT,
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def claimed_again_under_the_same_name() -> AgentRun:
    """A run whose first segment was reaped inside an idempotent write, in its second epoch."""
    run, _first, _step = fenced(ToolEffect.IDEMPOTENT_WRITE)
    expire(run)
    reap(run)
    make_due(run)
    claim(run, OWNER)
    return run


def assert_changes_nothing(run: AgentRun, answers: dict[str, str], before: Any) -> None:
    assert set(answers.values()) == {"LeaseLost"}, answers
    assert snapshot(run) == before


def test_refuses_a_zombie_of_an_older_epoch_under_the_same_name() -> None:
    run = claimed_again_under_the_same_name()
    before = snapshot(run)
    assert_changes_nothing(run, in_another_process(run, 1), before)
    assert reread(run).claim_epoch == 2


def test_refuses_a_zombie_of_an_older_epoch_while_the_new_segment_writes() -> None:
    run = claimed_again_under_the_same_name()
    row = reread(run)
    from agentruns.guard import Claim

    run.mark_pending_effect(Claim(run.pk, OWNER, 2), call(effect=ToolEffect.NON_IDEMPOTENT_WRITE))
    before = snapshot(row)
    assert_changes_nothing(run, attempts(str(run.uuid), OWNER, 1), before)
    assert reread(run).pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.FAILED, RunStatus.CANCELLED])
def test_refuses_a_zombie_of_a_run_that_is_not_running(status: RunStatus) -> None:
    effect = (
        ToolEffect.NON_IDEMPOTENT_WRITE
        if status is RunStatus.FAILED
        else ToolEffect.IDEMPOTENT_WRITE
    )
    run, _claim, _step = fenced(effect)
    if status is RunStatus.CANCELLED:
        run.cancel(by="somebody")
    expire(run)
    reap(run)
    assert reread(run).status == status
    before = snapshot(run)
    assert_changes_nothing(run, attempts(str(run.uuid), OWNER, 1), before)


@pytest.mark.server
def test_a_stamp_that_waited_for_the_reaper_is_refused() -> None:
    run, claimed = running()
    expire(run)
    stamp = second_comes_while(
        reap_in_transaction(run), lambda: run.mark_pending_effect(claimed, call())
    )
    with pytest.raises(LeaseLost):
        stamp.outcome()
    assert not run.journal().exists()


@pytest.mark.server
def test_a_record_that_waited_for_the_reaper_is_refused_and_the_fence_stands() -> None:
    run, claimed, step = fenced()
    expire(run)
    record = second_comes_while(
        reap_in_transaction(run), lambda: run.record_step(claimed, call(), returned("sent"), step)
    )
    with pytest.raises(LeaseLost):
        record.outcome()
    row = reread(run)
    assert (row.status, row.termination_reason) == (RunStatus.FAILED, "interrupted_write")
    assert row.pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE
    assert step_of(run).state == "uncertain"
