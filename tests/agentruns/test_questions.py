"""What a segment puts before a person, and what a person's answer does, transition by transition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentruns.enums import EventKind, RunMode, RunStatus, StepKind, StepState
from agentruns.exceptions import CancelRequested, TransitionRefused
from agentruns.fields import Payload
from agentruns.models import AgentRun, StepCall
from agentruns.verdict import Action
from tests.factories import (
    READ,
    call,
    fenced,
    history,
    question,
    queued,
    reread,
    returned,
    running,
    snapshot,
    step_of,
    with_status,
)

from .cases import conf

pytestmark = pytest.mark.django_db

WRITE_TO_ANN = call(arguments={"to": "ann"})


def approval_of(asked: StepCall) -> StepCall:
    return replace(asked, key=f"{asked.key}?", kind=StepKind.APPROVAL, effect=READ)


def test_an_open_question_is_not_asked_twice() -> None:
    run, held = running()
    run.ask(held, question())
    before = snapshot(run)
    run.ask(held, question())
    assert snapshot(run) == before


def test_a_question_that_has_changed_replaces_the_open_one() -> None:
    run, held = running()
    run.ask(held, question())
    run.ask(held, replace(question(), digest="another"))
    asked = run.journal().order_by("pk").values_list("attempt", "state", "digest")
    assert list(asked) == [
        (1, StepState.NOT_APPLIED, question().digest),
        (2, StepState.STARTED, "another"),
    ]
    assert history(run)[-2:] == [EventKind.INPUT_ASKED, EventKind.INPUT_ASKED]


def test_a_run_is_not_parked_after_a_requested_cancel() -> None:
    run, held, step = fenced()
    run.ask(held, question())
    run.cancel(by="somebody")
    run.record_step(held, call(), returned(), step)
    before = snapshot(run)
    with pytest.raises(CancelRequested):
        run.suspend(held)
    assert snapshot(run) == before


def test_a_run_without_an_open_question_is_not_parked() -> None:
    run, held = running()
    with pytest.raises(TransitionRefused, match="no open question"):
        run.suspend(held)
    assert reread(run).status == RunStatus.RUNNING


def test_a_run_that_does_not_wait_yet_is_not_answered() -> None:
    run, held = running()
    run.ask(held, question())
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="waits for nobody"):
        run.answer("question", Payload.of(7), by="somebody")
    assert snapshot(run) == before


def test_an_answer_while_another_question_is_open_is_written_down() -> None:
    run, held = running()
    for key in ("one", "two"):
        run.ask(held, question(key=key))
    run.suspend(held)
    run.answer("one", Payload.of(7), by="somebody")
    assert reread(run).status == RunStatus.WAITING_FOR_INPUT
    assert history(run)[-1] == EventKind.ANSWERED
    run.answer("two", Payload.of(7), by="somebody")
    assert reread(run).status == RunStatus.QUEUED


def test_whoever_asked_for_a_run_may_deny_where_he_may_not_approve() -> None:
    run = with_status(RunStatus.WAITING_FOR_APPROVAL)
    AgentRun.objects.filter(pk=run.pk).update(requested_by="ann")
    asked = run.journal().open_questions().get()
    with conf(REQUESTER_MAY_APPROVE=False):
        run.decide(asked.key, False, by="ann", digest=asked.digest)
    assert reread(run).status == RunStatus.QUEUED


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (Payload.of({"approved": False}), WRITE_TO_ANN),
        (Payload.of({"approved": 1}), WRITE_TO_ANN),
        (Payload.of({}), WRITE_TO_ANN),
        (None, WRITE_TO_ANN),
        (Payload.of({"approved": True}), call(arguments={"to": "bob"})),
    ],
)
def test_a_stamp_needs_a_yes_to_this_very_call(answer: Any, asked: StepCall) -> None:
    run, held = running()
    run.record_step(held, approval_of(asked), replace(returned(), result=answer))
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="not approved as it is"):
        run.mark_pending_effect(held, WRITE_TO_ANN, "write?")
    assert snapshot(run) == before


def test_a_stamp_needs_the_decision_that_it_names() -> None:
    run, held = running()
    with pytest.raises(TransitionRefused, match="not approved as it is"):
        run.mark_pending_effect(held, WRITE_TO_ANN, "write?")
    assert not run.journal().exists()


@pytest.mark.parametrize(("per_attempt", "used", "refused"), [
    (True, True, True), (True, False, False), (False, True, False),
])  # fmt: skip
def test_a_decision_serves_one_attempt_where_each_needs_its_own(
    per_attempt: bool, used: bool, refused: bool
) -> None:
    run, held = running()
    run.record_step(held, approval_of(WRITE_TO_ANN), returned({"approved": True}))
    if used:
        run.use_approval(held, WRITE_TO_ANN, "write?")
    with conf(APPROVAL_PER_ATTEMPT=per_attempt):
        if refused:
            with pytest.raises(TransitionRefused, match="used up"):
                run.mark_pending_effect(held, WRITE_TO_ANN, "write?")
        else:
            run.mark_pending_effect(held, WRITE_TO_ANN, "write?")
    assert bool(reread(run).pending_effect) is not refused
    assert step_of(run, "write?").used_at is not None or not used


def test_a_synchronous_run_that_is_given_back_is_not_put_into_the_queue() -> None:
    run, held = running(mode=RunMode.SYNCHRONOUS)
    assert run.give_back(held).action is Action.DEAD_LETTER
    assert reread(run).termination_reason == "not_retryable"


def test_a_wake_up_of_a_run_that_is_due_is_written_down() -> None:
    run = queued()
    AgentRun.objects.filter(pk=run.pk).write_guarded(woken_at=None)
    assert run.mark_woken(by="somebody")
    assert reread(run).woken_at is not None
    assert history(run)[-1] == EventKind.WOKEN


def test_a_run_that_is_not_due_is_not_woken() -> None:
    run, _held = running()
    before = snapshot(run)
    assert not run.mark_woken(by="somebody")
    assert snapshot(run) == before
