"""An agent that may have only two runs at a time, on several clusters whose workers are killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from agentruns.enums import RunStatus
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.processes import Reaper
from tests.harness.runs import describe, end_lease, reread
from tests.servers.waiting import wait_until

from .support import begin, wait_dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

MOST = 2
# Nothing goes on because a sweep found it: only because somebody passed a slot on.
PATIENT = {"WAKE_AGAIN_SECONDS": 300, "LEASE_SECONDS": 60}


def most_at_once(recorder: RecorderClient) -> int:
    """The largest number of bodies that the witness saw inside; who was killed is not any more."""
    inside: dict[int, str] = {}
    most = 0
    for report in recorder.bodies():
        if report["name"] == "enter":
            inside[report["pid"]] = report["key"]
        elif report["name"] == "leave":
            inside.pop(report["pid"], None)
        else:
            inside.pop(report["killed"], None)
        most = max(most, len(inside))
    return most


def all_end(runs: list[AgentRun], timeout: float = 120) -> None:
    def left() -> list[str]:
        return [describe(run) for run in runs if reread(run).status != RunStatus.COMPLETED]

    wait_until(lambda: not left(), timeout, lambda: f"the end of {left()}")


def test_all_runs_end_and_never_more_than_two_are_inside(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """Without a sweep: each run that ends wakes the next."""
    for _host in range(2):
        start_qcluster(workers=3, agentruns=PATIENT)
    recorder.arm("in_body:enter", times=MOST)
    runs = [begin("limited", {"seconds": 0.05}) for _ in range(24)]
    recorder.wait_reached("in_body:enter", arrival=MOST)
    recorder.release("in_body:enter")
    all_end(runs)
    assert most_at_once(recorder) == MOST
    assert recorder.count("enter") == len(runs)
    assert all(reread(run).requeue_count == 0 for run in runs)


def test_workers_killed_with_a_slot_give_it_up_when_they_are_reaped(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    clusters = [start_qcluster(workers=3) for _host in range(2)]
    recorder.arm("in_body:enter", times=MOST)
    runs = [begin("limited", {"seconds": 0.05}) for _ in range(10)]
    held = [recorder.wait_reached("in_body:enter", arrival=n + 1) for n in range(MOST)]
    in_line = AgentRun.objects.in_line()
    wait_until(lambda: in_line.count() == 8, what="all others in line")
    for worker in held:
        next(cluster for cluster in clusters if cluster.owns(worker)).kill_worker(worker)
        recorder.body("killed", "", killed=worker)
    running = list(AgentRun.objects.running())
    assert len(running) == MOST
    for run in running:
        end_lease(run)
    with Reaper() as reaper:
        all_end(runs)
        reaper.check()
    assert most_at_once(recorder) == MOST
    assert sorted(reread(run).requeue_count for run in runs) == [0] * 8 + [1, 1]


def test_other_agents_go_on_while_a_full_one_waits(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    start_qcluster(workers=3)
    recorder.arm("in_body:enter", times=MOST)
    waiting = [begin("limited", {"seconds": 0}) for _ in range(6)]
    recorder.wait_reached("in_body:enter", arrival=MOST)
    others: list[Any] = [begin("reads") for _ in range(3)]
    all_end(others)
    assert AgentRun.objects.running().count() == MOST
    recorder.release("in_body:enter")
    with Reaper():
        all_end(waiting)


def test_workers_asked_to_stop_while_their_runs_end_pass_their_slots_on_first(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    cluster = start_qcluster(workers=4, agentruns=PATIENT)
    recorder.arm("in_body:enter", times=MOST)
    runs = [begin("limited", {"seconds": 0.05}) for _ in range(4)]
    recorder.wait_reached("in_body:enter", arrival=MOST)
    wait_until(lambda: AgentRun.objects.in_line().count() == 2, what="the others in line")
    recorder.arm("after_complete", times=MOST)
    recorder.release("in_body:enter")
    ending = [recorder.wait_reached("after_complete", arrival=n + 1) for n in range(MOST)]
    for worker in ending:
        cluster.kill_worker(worker, signal.SIGTERM)
    recorder.release("after_complete")
    for worker in ending:
        wait_dead(worker)
    all_end(runs)
    assert recorder.count("enter") == len(runs)
