"""Kill the process at every boundary of a ten-step run; resume it in another process."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from agentruns import api
from agentruns.api import RunEvent, decide
from agentruns.enums import EventKind, RunStatus
from agentruns.exceptions import TransitionRefused
from agentruns.models import AgentRun
from tests.factories import expire
from tests.harness.runs import describe, reread
from tests.nrllm.forked import work
from tests.nrllm.long_agent import NAME, register
from tests.nrllm.support import accept, fenced, keys, output
from tests.races.rivals import together
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("settings_for_runs", "forked_workers")

WRITES = ("tool:1:w1", "tool:2:w2")

# In the order in which a run reaches them: each step of the run is among them.
BOUNDARIES = [
    ("in_stream", "model:1"),
    ("before_record", "model:1"),
    ("after_record", "model:1"),
    ("after_record", "event:1:function_tool_call:r1"),
    ("before_record", "event:1:function_tool_call:r2"),
    ("after_record", "event:1:function_tool_call:w1"),
    ("before_record", "tool:1:r1"),
    ("after_record", "tool:1:r1"),
    ("before_record", "tool:1:r2"),
    ("after_record", "tool:1:r2"),
    ("after_record", "event:1:function_tool_result:r1"),
    ("before_record", "event:1:function_tool_result:r2"),
    ("before_stamp", "tool:1:w1"),
    ("after_record", "tool:1:w1"),
    ("before_record", "event:1:function_tool_result:w1"),
    ("before_record", "model:2"),
    ("after_record", "model:2"),
    ("before_record", "event:2:function_tool_call:r3"),
    ("before_record", "tool:2:r3"),
    ("after_record", "tool:2:r3"),
    ("before_record", "event:2:function_tool_result:r3"),
    ("after_record", "event:2:function_tool_call:w2"),
    ("before_record", "event:2:deferred_tool_requests:-"),
    ("before_ask", "tool:2:w2?"),
    ("after_ask", "tool:2:w2?"),
    ("after_record", "event:2:deferred_tool_results:-"),
    ("before_stamp", "tool:2:w2"),
    ("after_record", "tool:2:w2"),
    ("before_record", "event:2:function_tool_result:w2"),
    ("in_stream", "model:3"),
    ("before_record", "model:3"),
    ("after_record", "model:3"),
]
# Reads run side by side: this may have been recorded while the other one was going on.
RACING = {"event:1:function_tool_result:r1"}
# What ends a segment, and what may stand between a claim and that.
ENDS = (
    [EventKind.LEASE_LOST, EventKind.REQUEUED],
    [EventKind.PARKED, EventKind.GRANTED],
    [EventKind.COMPLETED],
)
DEAD_LETTERED = [
    (point, key) for point in ("after_stamp", "in_body", "before_record") for key in WRITES
]


def kill(run: AgentRun, log: Path, point: str, key: str) -> AgentRun:
    """Have a worker die at this point, and its run reaped."""
    died = work(run, log, point, key)
    if reread(run).status == RunStatus.WAITING_FOR_APPROVAL:
        approve(run)
        died = work(run, log, point, key)
    assert died == -signal.SIGKILL, describe(run)
    reap_the_dead(run)
    return reread(run)


def reap_the_dead(run: AgentRun) -> None:
    """Reap a run whose worker is gone. A renewal that it has sent may land for a moment yet."""

    def reaped() -> bool:
        expire(run)
        call_command("reap_stale_agent_runs", stdout=StringIO())
        return reread(run).status != RunStatus.RUNNING

    wait_until(reaped, what=lambda: describe(run))


def approve(run: AgentRun) -> None:
    """Two people say yes at the same moment, neither of them in the worker's process."""
    (question,) = run.journal().open_questions()
    rivals = together(
        *[
            lambda by=by: decide(run.uuid, question.key, True, by=by, digest=question.digest)
            for by in ("ann", "bob")
        ]
    )
    assert sum(rival.failed_with(TransitionRefused) for rival in rivals) == 1


def lines(log: Path, kind: str) -> list[str]:
    return [line[len(kind) + 1 :] for line in log.read_text().splitlines() if line.startswith(kind)]


def stream(log: Path) -> dict[str, list[tuple[int, str]]]:
    """The stream as a consumer keeps it: of each step, what the highest epoch sent."""
    kept: dict[str, tuple[int, list[tuple[int, str]]]] = {}
    for line in lines(log, "event"):
        step, epoch, index, said = line.split(" ", 3)
        known = kept.get(step, (0, []))
        if int(epoch) > known[0]:
            known = kept[step] = (int(epoch), [])
        known[1].append((int(index), said))
    return {step: events for step, (_epoch, events) in kept.items()}


def undisturbed(log: Path) -> dict[str, list[tuple[int, str]]]:
    run = accept(NAME)
    assert work(run, log) == 0
    approve(run)
    assert work(run, log) == 0
    assert reread(run).status == RunStatus.COMPLETED, describe(run)
    return stream(log)


class Poller:
    """Follows a run's history from outside, as an application does, while the run goes on."""

    def __init__(self, run: AgentRun) -> None:
        self.run = run
        self.seen: list[RunEvent] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            while not self._stop.wait(0.01):
                self.read_on()
        finally:
            connection.close()

    def read_on(self) -> None:
        self.seen += api.events(self.run.uuid, after=self.seen[-1].id if self.seen else 0)


def segments_of(history: list[RunEvent]) -> list[list[EventKind]]:
    """What happened in each segment, from its claim on."""
    found: list[list[EventKind]] = []
    for event in history:
        if event.kind is EventKind.CLAIMED:
            found.append([])
            assert event.epoch == len(found), "an epoch for each claim"
        elif found:
            found[-1].append(event.kind)
    return found


def check_history(run: AgentRun, seen: list[RunEvent]) -> None:
    """Every segment has one end, and nothing is missing, doubled or out of order."""
    assert seen == api.events(run.uuid)
    assert seen[0].kind is EventKind.QUEUED
    assert seen[1].kind is EventKind.CLAIMED
    segments = segments_of(seen)
    for number, kinds in enumerate(segments):
        asked = kinds[:1] == [EventKind.APPROVAL_ASKED]
        end = kinds[1:] if asked else kinds
        assert end in ENDS, (number, kinds)
        assert (end == [EventKind.COMPLETED]) == (number == len(segments) - 1)
    counted = Counter(event.kind for event in seen)
    once = (EventKind.QUEUED, EventKind.APPROVAL_ASKED, EventKind.PARKED, EventKind.GRANTED)
    assert [counted[kind] for kind in once] == [1, 1, 1, 1]


@pytest.mark.postgres
@pytest.mark.timeout(1800)
def test_killed_at_every_boundary_one_run_still_does_everything_once(
    settings_for_runs: Any, tmp_path: Path
) -> None:
    settings_for_runs.AGENTRUNS = {**settings_for_runs.AGENTRUNS, "MAX_REQUEUES": 100}
    log = tmp_path / "log"
    register(log)
    expected = undisturbed(tmp_path / "undisturbed")
    run = accept(NAME)
    with Poller(run) as poller:
        for point, key in BOUNDARIES:
            if key in RACING and run.journal().filter(recorded_key=key).exists():
                continue
            run = kill(run, log, point, key)
            assert run.status == RunStatus.QUEUED, (point, key, describe(run))
        ended = lambda: work(run, log) == 0 and reread(run).finished_at  # noqa: E731
        wait_until(ended, what=lambda: describe(run))
    poller.read_on()

    assert reread(run).status == RunStatus.COMPLETED, describe(run)
    assert output(run) == "Both were sent."
    assert {key for _, key in BOUNDARIES} == set(keys(run)), "no step without a boundary"
    bodies = lines(log, "body")
    assert bodies.count("send x") == 1
    assert bodies.count("send y") == 1
    # A read that was going on when the process died is done again, and nothing else.
    assert bodies.count("read 3") == 2
    assert 2 <= bodies.count("read 1") <= 4
    assert 2 <= bodies.count("read 2") <= 4
    check_history(run, poller.seen)
    assert stream(log) == expected
    assert len(lines(log, "event")) > len(lines(tmp_path / "undisturbed", "event"))


@pytest.mark.parametrize(("point", "key"), DEAD_LETTERED, ids=lambda value: value.replace(":", "-"))
def test_killed_inside_a_write_it_is_dead_lettered_and_the_fence_stands(
    tmp_path: Path, point: str, key: str
) -> None:
    log = tmp_path / "log"
    register(log)
    run = kill(accept(NAME), log, point, key)
    assert run.status == RunStatus.FAILED
    assert fenced(run).key == key
    to = {"tool:1:w1": "x", "tool:2:w2": "y"}[key]
    assert lines(log, "body").count(f"send {to}") == (0 if point == "after_stamp" else 1)
