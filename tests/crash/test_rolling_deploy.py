"""Workers of two versions of an agent side by side, as a rolling deploy leaves them for a while."""

from __future__ import annotations

import pytest

from agentruns import api
from agentruns.enums import RunStatus
from agentruns.fields import Payload
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.processes import Reaper
from tests.harness.qcluster import QCluster
from tests.harness.runs import describe, drain, end_lease, history, reread, wait_settled
from tests.servers.waiting import wait_until

from .support import COMPLETED, outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def often_waking() -> Reaper:
    """A reaper that wakes a run again each second: the pause would double while a cluster starts."""
    return Reaper(agentruns={"WAKE_AGAIN_MAX_SECONDS": 1})


def of_version(start: StartQCluster, version: str) -> QCluster:
    return start(TEST_AGENT_VERSION=version)


def accepted_by(version: str) -> AgentRun:
    """A run as a process of this version enqueues it."""
    run: AgentRun = AgentRun.objects.enqueue(
        "versioned", Payload.of(None), agent_version=version, woken=False
    )[0]
    return run


def wait_declined(run: AgentRun) -> None:
    wait_until(lambda: "declined" in history(run), 120, lambda: describe(run))


def test_a_run_waits_for_a_worker_of_its_version(start_qcluster: StartQCluster) -> None:
    of_version(start_qcluster, "2")
    old, new = accepted_by("1"), accepted_by("2")
    with often_waking():
        wait_settled(new, timeout=120)
        wait_declined(old)
        assert outcome(new) == COMPLETED
        assert reread(old).status == RunStatus.QUEUED
        of_version(start_qcluster, "1")
        wait_settled(old, timeout=120)
    assert outcome(old) == COMPLETED, describe(old)
    assert reread(old).requeue_count == 0
    assert api.status(old.uuid).output == [["first", "1"], ["second", "1"]]
    assert api.status(new.uuid).output == [["first", "2"], ["second", "2"]]


def test_a_run_whose_worker_of_the_old_version_died_goes_on_where_a_person_moves_it(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """Its recorded step is replayed by the new code; the other one is executed by it."""
    old = of_version(start_qcluster, "1")
    recorder.arm("in_body:second")
    run = accepted_by("1")
    api.wake(run.uuid)
    worker = recorder.wait_reached("in_body:second")
    old.kill()
    end_lease(run)
    recorder.release("in_body:second")
    assert worker
    of_version(start_qcluster, "2")
    with often_waking():
        wait_declined(run)
        row = reread(run)
        assert (row.status, row.requeue_count) == (RunStatus.QUEUED, 1)
        api.move(run.uuid, "2", by="ada")
        wait_settled(run, timeout=120)
    assert outcome(run) == COMPLETED, describe(run)
    assert api.status(run.uuid).output == [["first", "1"], ["second", "2"]]
    assert recorder.count("first") == 1


def test_a_run_of_an_agent_that_no_worker_has_is_dead_lettered_by_nobody(
    start_qcluster: StartQCluster,
) -> None:
    start_qcluster()
    run: AgentRun = AgentRun.objects.enqueue("gone", Payload.of(None), woken=False)[0]
    with often_waking():
        wait_declined(run)
        first = reread(run).woken_at
        wait_until(lambda: reread(run).woken_at != first, 120, "another wake-up")
    assert reread(run).status == RunStatus.QUEUED
    assert history(run).count("declined") == 1
    api.fail(run.uuid, by="ada", reason="its agent was removed")
    assert drain(run).error_message == "failed by ada: its agent was removed"
