"""`hold_agent_runs` while a real worker is inside a write, as after a restore that came too early."""

from __future__ import annotations

import pytest

from agentruns.enums import RunStatus
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.manage import run_manage
from tests.harness.processes import Reaper
from tests.harness.runs import describe, enqueued, history, reread
from tests.servers.waiting import wait_until

from .support import begin_held, interrupted_step

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def test_a_worker_inside_a_write_loses_the_run_and_nothing_is_executed_again(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster()
    run, _worker = begin_held("one_write", "in_body:write", recorder)
    queued = enqueued("one_write")
    held = (
        run_manage("hold_agent_runs", "--yes", "--by", "ada", "--reason", "x", "--json")
        .check()
        .json
    )
    assert held["reasons"] == {"interrupted_write": 1, "not_retryable": 1}
    recorder.release("in_body:write")
    wait_until(lambda: "late_evidence" in history(run), what=lambda: describe(run))
    # The worker is free now; the reaper finds nothing that it could wake or take back.
    with Reaper():
        marker = enqueued("reads")
        wait_until(lambda: reread(marker).status == RunStatus.COMPLETED, what="the next run")
    step = interrupted_step(run)
    assert step.landed_late
    assert reread(queued).status == RunStatus.FAILED
    assert [recorder.count(name) for name in ("write", "read_after")] == [1, 0]
