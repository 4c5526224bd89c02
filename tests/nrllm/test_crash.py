"""Kill the process at every boundary of a ten-step run; resume it in another process."""

from __future__ import annotations

import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from agentruns.api import decide
from agentruns.enums import RunStatus
from agentruns.exceptions import TransitionRefused
from agentruns.models import AgentRun
from tests.harness.environment import subprocess_environment
from tests.harness.runs import describe, reread, wait_out_lease
from tests.nrllm.long_agent import NAME, register
from tests.nrllm.support import accept, fenced, output
from tests.races.rivals import together
from tests.servers.process import ROOT
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("settings_for_runs")

WRITES = ("tool:1:w1", "tool:2:w2")

# In the order in which a run reaches them.
BOUNDARIES = [
    ("before_record", "model:1"),
    ("after_record", "model:1"),
    ("after_record", "event:1:function_tool_call:r1"),
    ("before_record", "tool:1:r1"),
    ("after_record", "tool:1:r1"),
    ("before_record", "tool:1:r2"),
    ("after_record", "tool:1:r2"),
    ("before_stamp", "tool:1:w1"),
    ("after_record", "tool:1:w1"),
    ("before_record", "event:1:function_tool_result:w1"),
    ("before_record", "model:2"),
    ("after_record", "model:2"),
    ("before_record", "tool:2:r3"),
    ("after_record", "tool:2:r3"),
    ("before_ask", "tool:2:w2?"),
    ("after_ask", "tool:2:w2?"),
    ("before_stamp", "tool:2:w2"),
    ("after_record", "tool:2:w2"),
    ("before_record", "model:3"),
    ("after_record", "model:3"),
]
DEAD_LETTERED = [
    (point, key) for point in ("after_stamp", "in_body", "before_record") for key in WRITES
]


def work(run: AgentRun, log: Path, *point: str) -> int:
    command = [sys.executable, "-m", "tests.nrllm.worker", str(run.uuid), str(log), *point]
    environment = subprocess_environment(agentruns={"LEASE_SECONDS": 1, "HEARTBEAT_SECONDS": 0.2})
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


def kill(run: AgentRun, log: Path, point: str, key: str) -> AgentRun:
    """Have a worker die at this point, and its run reaped."""
    died = work(run, log, point, key)
    if reread(run).status == RunStatus.WAITING_FOR_APPROVAL:
        approve(run)
        died = work(run, log, point, key)
    assert died == -signal.SIGKILL, describe(run)
    wait_out_lease(run)
    call_command("reap_stale_agent_runs", stdout=StringIO())
    return reread(run)


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


@pytest.mark.timeout(600)
def test_killed_at_every_boundary_one_run_still_does_everything_once(
    settings_for_runs: Any, tmp_path: Path
) -> None:
    settings_for_runs.AGENTRUNS = {**settings_for_runs.AGENTRUNS, "MAX_REQUEUES": 100}
    log = tmp_path / "log"
    register(log)
    run = accept(NAME)
    for point, key in BOUNDARIES:
        run = kill(run, log, point, key)
        assert run.status == RunStatus.QUEUED, (point, key, describe(run))
    wait_until(lambda: work(run, log) == 0 and reread(run).finished_at, 20, lambda: describe(run))

    assert reread(run).status == RunStatus.COMPLETED, describe(run)
    assert output(run) == "Both were sent."
    bodies, events = lines(log, "body"), lines(log, "event")
    assert bodies.count("send x") == 1
    assert bodies.count("send y") == 1
    # A read or an event that was going on when the process died is done again, and nothing else.
    assert bodies.count("read 3") == 2
    assert 2 <= bodies.count("read 1") <= 4
    assert 2 <= bodies.count("read 2") <= 4
    assert events.count("function_tool_result w1") == 2
    assert events.count("function_tool_result w2") == 1
    assert events.count("function_tool_call w1") == 1
    assert events.count("function_tool_call w2") == 1


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
