"""A write that is recorded is not repeated, whatever becomes of the run afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from agentruns.dispatch import wake_after_commit
from agentruns.enums import RunStatus, StepState
from agentruns.models import AgentRun, Step
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.processes import Reaper, SyncRunProcess
from tests.harness.qcluster import QCluster
from tests.harness.runs import (
    deliver_again,
    describe,
    drain,
    end_lease,
    history,
    reap,
    reread,
    wait_settled,
)
from tests.project.models import LedgerEntry
from tests.servers.waiting import wait_until

from .support import (
    COMPLETED,
    EXHAUSTED,
    NOT_RETRYABLE,
    begin,
    begin_held,
    bodies,
    epochs,
    interrupted_step,
    kill_held,
    outcome,
    wait_dead,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def fail_after_the_write(how: str, recorder: RecorderClient, *, times: int = 1) -> None:
    recorder.arm("in_body:read_after", times=times, block=False, answer=how)


def test_a_503_after_a_recorded_write_is_retried_without_the_write(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    fail_after_the_write("unavailable", recorder)
    run = begin("one_write")
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert recorder.count("write") == 1
    assert recorder.count("read_before") == 1
    assert recorder.count("read_after") == 2
    assert history(run) == ["queued", "claimed", "requeued", "claimed", "completed"]
    assert epochs(run, "write") == [1]


def test_a_run_that_exhausts_its_budget_after_a_recorded_write_does_not_repeat_it(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(agentruns={"MAX_REQUEUES": 2})
    fail_after_the_write("unavailable", recorder, times=10)
    run = begin("one_write")
    drain(run)
    assert outcome(run) == EXHAUSTED, describe(run)
    assert recorder.count("read_after") == 3
    assert recorder.count("write") == 1
    assert reread(run).pending_effect == ""


def test_an_error_that_no_retry_cures_ends_the_run_without_repeating_its_write(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    fail_after_the_write("broken", recorder)
    run = begin("one_write")
    wait_settled(run)
    reap()
    deliver_again(run)
    assert outcome(run) == NOT_RETRYABLE, describe(run)
    assert reread(run).error_class == "DestinationBroken"
    assert reread(run).requeue_count == 0
    assert recorder.count("read_after") == 1
    assert recorder.count("write") == 1
    assert reread(run).pending_effect == ""


def test_a_run_without_a_stored_request_is_not_executed_again(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    recorder.arm("in_body:read_after")
    run, _created = AgentRun.objects.enqueue("one_write", None)
    wake_after_commit(run.uuid)
    qcluster.kill_worker(recorder.wait_reached("in_body:read_after"))
    end_lease(run)
    reap()
    deliver_again(run)
    assert outcome(run) == NOT_RETRYABLE, describe(run)
    assert recorder.count("read_after") == 1
    assert recorder.count("write") == 1


def test_a_synchronous_run_that_dies_is_not_executed_again(
    start_sync_run: Callable[..., SyncRunProcess], recorder: RecorderClient
) -> None:
    recorder.arm("in_body:write", skip=1)
    recorder.arm("in_body:read_after")
    callers = {caller.pid: caller for caller in (start_sync_run("one_write", {}) for _ in "ab")}
    inside = recorder.wait_reached("in_body:write")
    after = recorder.wait_reached("in_body:read_after")
    assert {inside, after} == set(callers)
    for caller in callers.values():
        caller.send_signal()
    runs = {int(run.claimed_by.split(":")[2]): run for run in AgentRun.objects.all()}
    for run in runs.values():
        end_lease(run)
    reap()
    interrupted_step(runs[inside])
    assert outcome(runs[after]) == NOT_RETRYABLE, describe(runs[after])
    assert [bodies(run, "write", recorder) for run in runs.values()] == [1, 1]


def test_an_idempotent_write_that_was_killed_is_repeated_with_the_same_key(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    run = kill_held("repeatable_write", "in_body:write", qcluster, recorder)
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    first, second = recorder.bodies("write")
    assert first["key"] == second["key"]
    assert first["pid"] != second["pid"]
    assert recorder.count("read_before") == 1
    assert epochs(run, "write") == [1, 2]
    assert Step.objects.get(run=run, recorded_key="write").idempotency_key == first["key"]


def test_an_idempotent_write_that_met_a_503_is_repeated_with_the_same_key(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    recorder.arm("in_body:write", block=False, answer="unavailable")
    run = begin("repeatable_write")
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    first, second = recorder.bodies("write")
    assert first["key"] == second["key"]


def test_a_transactional_write_happens_exactly_once_wherever_its_worker_dies(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    # Where the worker is killed: what is committed then, and how often the body starts in all.
    points = {
        "after_record:read_before": (0, 1),  # before the transaction
        "in_body:write": (0, 2),  # inside it
        "in_record:write": (0, 2),  # inside it, the step recorded
        "in_body:read_after": (1, 1),  # after it
    }
    qcluster = start_qcluster(workers=len(points))
    held = {point: begin_held("transactional_write", point, recorder) for point in points}
    for point, (run, worker) in held.items():
        qcluster.kill_worker(worker)
        assert reread(run).status == RunStatus.RUNNING
        assert reread(run).pending_effect == ""
        assert LedgerEntry.objects.filter(run=run.uuid).count() == points[point][0], point
    for point, (run, _worker) in held.items():
        end_lease(run)
        drain(run)
        assert outcome(run) == COMPLETED, describe(run)
        step = Step.objects.get(run=run, key="write")
        assert step.state == StepState.RECORDED
        assert bodies(run, "write", recorder) == points[point][1], point
        assert LedgerEntry.objects.get(run=run.uuid).idempotency_key == step.idempotency_key


def poisoned_more_often_than(attempts: int, recorder: RecorderClient) -> bool:
    return recorder.count("poison") > attempts


def test_a_run_that_kills_its_worker_every_time_ends(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(agentruns={"MAX_REQUEUES": 1})
    run = begin("poisoned")
    with Reaper(agentruns={"MAX_REQUEUES": 1}):
        for attempt in range(2):
            wait_until(partial(poisoned_more_often_than, attempt, recorder), what="the poison")
            wait_dead(recorder.bodies("poison")[attempt]["pid"])
            end_lease(run)
        wait_settled(run)
    assert outcome(run) == EXHAUSTED, describe(run)
    assert len({body["pid"] for body in recorder.bodies("poison")}) == 2
    assert recorder.count("poison") == 2
    assert recorder.count("write") == 1
    assert history(run).count("lease_lost") == 2
