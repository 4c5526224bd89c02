"""What one response asks: parked by one process, decided twice at once, resumed by others."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from agentruns import api
from agentruns.enums import EventKind, RunStatus, StepState
from agentruns.exceptions import TransitionRefused
from agentruns.models import AgentRun, Step
from tests.harness.runs import describe, reread
from tests.nrllm.forked import work
from tests.nrllm.parked_agent import NAME, register
from tests.nrllm.support import accept, output
from tests.nrllm.test_crash import lines, reap_the_dead
from tests.races.rivals import together

pytestmark = pytest.mark.usefixtures("settings_for_runs", "forked_workers")

ASKED = {"tool:1:q1?1", "tool:1:q2?1", "tool:1:w1?"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log"
    file.touch()
    return file


def parked(log: Path) -> AgentRun:
    register(log)
    run = accept(NAME)
    assert work(run, log) == 0
    run = reread(run)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, describe(run)
    return run


def step(run: AgentRun, key: str) -> Step:
    found: Step = Step.objects.get(run=run, key=key)
    return found


def twice_at_once(call: Any) -> None:
    rivals = together(call, call)
    assert sum(rival.failed_with(TransitionRefused) for rival in rivals) == 1


def test_two_questions_an_approval_and_a_running_read(log: Path) -> None:
    run = parked(log)
    assert {question.key for question in run.journal().open_questions()} == ASKED
    assert lines(log, "body") == ["look"]
    assert step(run, "tool:1:r1").state == StepState.RECORDED
    assert (run.pending_effect, run.lease_expires_at) == ("", None)

    digest = step(run, "tool:1:w1?").digest
    twice_at_once(lambda: api.decide(run.uuid, "tool:1:w1?", True, by="ann", digest=digest))
    twice_at_once(lambda: api.submit_input(run.uuid, "tool:1:q2?1", 2, by="ann"))
    assert reread(run).status == RunStatus.WAITING_FOR_INPUT
    twice_at_once(lambda: api.submit_input(run.uuid, "tool:1:q1?1", 1, by="bob"))
    assert reread(run).status == RunStatus.QUEUED

    assert work(run, log, "before_stamp", "tool:1:w1") == -signal.SIGKILL
    reap_the_dead(run)
    assert work(run, log) == 0
    assert reread(run).status == RunStatus.QUEUED, "the next request to the model failed"
    assert work(run, log) == 0

    assert reread(run).status == RunStatus.COMPLETED, describe(run)
    assert output(run) == "Done."
    assert sorted(lines(log, "body")) == ["look", "publish x", "width door 1", "width wall 2"]
    kinds = [event.kind for event in api.events(run.uuid)]
    assert kinds.count(EventKind.PARKED) == 1
    assert kinds.count(EventKind.GRANTED) == 1
    assert kinds.count(EventKind.ANSWERED) == 2
