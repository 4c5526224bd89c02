"""A worker that dies while it asks a destination about a write in doubt."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentruns import api
from agentruns.enums import EventKind, RunStatus
from tests.harness.runs import describe, reread
from tests.nrllm.forked import work
from tests.nrllm.long_agent import NAME, register
from tests.nrllm.support import accept, fenced, output
from tests.nrllm.test_crash import approve, kill, lines
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("settings_for_runs", "forked_workers")

WRITE = "tool:1:w1"


def test_a_worker_killed_in_a_verification_leaves_the_fence_and_the_next_one_asks_again(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    register(log)
    run = kill(accept(NAME), log, "in_body", WRITE)
    assert work(run, log, "in_verify", WRITE) == -signal.SIGKILL
    step = fenced(run)
    assert (step.key, step.asked_count, step.testimony) == (WRITE, 1, "")
    assert EventKind.VERIFIED not in [event.kind for event in api.events(run.uuid)]

    due = run.journal().filter(pk=step.pk).due_for_asking()
    wait_until(due.exists, what="the next asking")
    assert work(run, log) == 0
    assert reread(run).status == RunStatus.QUEUED, describe(run)
    assert work(run, log) == 0
    approve(run)
    assert work(run, log) == 0
    assert output(run) == "Both were sent."
    assert lines(log, "body").count("send x") == 1
    asked = lines(log, "verify")
    assert asked == [f"send {step.idempotency_key}"] * 2
    kinds = [event.kind for event in api.events(run.uuid)]
    assert (kinds.count(EventKind.VERIFIED), kinds.count(EventKind.RESOLVED)) == (1, 1)
