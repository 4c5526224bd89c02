from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentruns import api
from agentruns.enums import EventKind, Resolution, RunStatus, StepKind
from agentruns.exceptions import ApprovalDenied, TransitionRefused
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.factories import (
    READ,
    TRANSACTIONAL,
    WRITE,
    call,
    execute_again,
    executed,
    fail,
    fenced,
    history,
    make_due,
    reread,
    snapshot,
    step_of,
)
from tests.races.rivals import together

pytestmark = pytest.mark.django_db(transaction=True)


class Mailer:
    """An agent's function with one write that needs an approval; counts its bodies."""

    def __init__(self, to: str = "a@example.org") -> None:
        self.to = to
        self.sent: list[str] = []

    def __call__(self, segment: Segment) -> Any:
        try:
            return segment.step("send", self.send, arguments={"to": self.to}, needs_approval=True)
        except ApprovalDenied as denied:
            return f"denied: {denied.note}"

    def send(self, key: str) -> str:
        self.sent.append(key)
        return "sent"


def open_question(run: AgentRun) -> Step:
    step: Step = run.journal().open_questions().get()
    return step


def approve(run: AgentRun, by: str = "boss", approved: Any = True) -> None:
    question = open_question(run)
    run.decide(question.key, approved, by=by, digest=question.digest, note="a note")


def test_a_write_that_needs_approval_parks_the_run_before_its_fence() -> None:
    mailer = Mailer()
    run = executed(mailer)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL
    assert (run.pending_effect, run.claimed_by, run.lease_expires_at) == ("", "", None)
    question = open_question(run)
    assert question.arguments is not None
    assert question.arguments.value == {"to": "a@example.org"}
    assert mailer.sent == []


def test_an_approved_write_is_executed_with_the_arguments_that_were_shown() -> None:
    mailer = Mailer()
    run = executed(mailer)
    approve(run)
    done = execute_again(run, mailer)
    assert done.status == RunStatus.COMPLETED
    assert len(mailer.sent) == 1
    assert history(run) == [
        EventKind.QUEUED,
        EventKind.CLAIMED,
        EventKind.APPROVAL_ASKED,
        EventKind.PARKED,
        EventKind.GRANTED,
        EventKind.CLAIMED,
        EventKind.COMPLETED,
    ]


def test_the_stamp_uses_the_decision_up() -> None:
    mailer = Mailer()
    run = executed(mailer)
    approve(run)
    decision = step_of(run, "send?")
    assert decision.used_at is None
    execute_again(run, mailer)
    decision.refresh_from_db()
    assert decision.used_at is not None


@pytest.mark.parametrize("answer", [False, 1, "yes", None, {"approved": True}])
def test_nothing_but_an_explicit_yes_is_a_yes(answer: Any) -> None:
    mailer = Mailer()
    run = executed(mailer)
    approve(run, approved=answer)
    done = execute_again(run, mailer)
    assert done.status == RunStatus.COMPLETED
    assert AgentRun.objects.get(pk=run.pk).output == Payload.of("denied: a note")
    assert mailer.sent == []


def test_a_call_with_other_arguments_is_not_allowed_by_the_decision() -> None:
    run = executed(Mailer())
    approve(run)
    other = Mailer("thief@example.org")
    done = execute_again(run, other)
    assert other.sent == []
    assert done.status == RunStatus.FAILED
    assert "send?" in done.error_message


def test_a_decision_on_another_call_than_the_one_shown_is_refused() -> None:
    run = executed(Mailer())
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        run.decide("send?", True, by="boss", digest="0" * 64)
    assert snapshot(run) == before


def test_a_decision_that_comes_twice_counts_once() -> None:
    run = executed(Mailer())
    approve(run)
    before = snapshot(run)
    digest = step_of(run, "send?").digest
    with pytest.raises(TransitionRefused):
        run.decide("send?", False, by="another", digest=digest)
    assert snapshot(run) == before


@pytest.mark.server
def test_one_of_two_decisions_at_the_same_moment_counts() -> None:
    run = executed(Mailer())
    digest = open_question(run).digest
    rivals = together(
        *[
            lambda approved=approved: run.decide("send?", approved, by="boss", digest=digest)
            for approved in (True, False)
        ]
    )
    refused = [rival for rival in rivals if rival.failed_with(TransitionRefused)]
    assert len(refused) == 1
    kinds = history(run)
    assert kinds.count(EventKind.GRANTED) + kinds.count(EventKind.DENIED) == 1


@pytest.mark.parametrize("name", ["alice", "Alice", " alice "])
def test_the_person_who_asked_for_the_run_may_be_kept_from_approving_it(
    settings: Any, name: str
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "REQUESTER_MAY_APPROVE": False}
    mailer = Mailer()
    run = executed(mailer)
    AgentRun.objects.filter(pk=run.pk).update(requested_by="alice")
    with pytest.raises(TransitionRefused, match="may not approve"):
        approve(run, by=name)
    approve(run, by="bob")


def test_another_attempt_of_the_same_step_needs_no_second_decision() -> None:
    mailer = Mailer()
    run = executed(mailer)
    approve(run)
    run, claimed, step = stamped_with_approval(run)
    fail(run, claimed)
    row = reread(run)
    digest = row.resolution_digest()
    row.resolve(Resolution.DID_NOT_HAPPEN, by="boss", reason="checked", digest=digest)
    done = execute_again(run, mailer)
    assert (done.status, len(mailer.sent)) == (RunStatus.COMPLETED, 1)
    assert step_of(run, "send").attempt == step.attempt + 1


def test_each_attempt_needs_a_decision_of_its_own_where_a_setting_says_so(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "APPROVAL_PER_ATTEMPT": True}
    mailer = Mailer()
    run = executed(mailer)
    approve(run)
    run, claimed, _step = stamped_with_approval(run)
    fail(run, claimed)
    row = reread(run)
    row.resolve(
        Resolution.DID_NOT_HAPPEN, by="boss", reason="checked", digest=row.resolution_digest()
    )
    again = execute_again(run, mailer)
    assert mailer.sent == []
    assert again.status == RunStatus.WAITING_FOR_APPROVAL
    approve(again)
    assert execute_again(again, mailer).status == RunStatus.COMPLETED
    assert len(mailer.sent) == 1


def stamped_with_approval(run: AgentRun) -> Any:
    from tests.factories import claim

    make_due(run)
    run, claimed = claim(run)
    shown = call("send", arguments={"to": "a@example.org"})
    return run, claimed, run.mark_pending_effect(claimed, shown, "send?")


def test_no_other_step_may_use_a_decision() -> None:
    run = executed(Mailer())
    approve(run)
    from tests.factories import claim

    make_due(run)
    run, claimed = claim(run)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="not approved"):
        run.mark_pending_effect(claimed, call("send", arguments={"to": "other"}), "send?")
    assert snapshot(run) == before


def test_a_transactional_write_uses_its_decision_up_in_its_own_transaction() -> None:
    def post(segment: Segment) -> Any:
        return segment.step("post", lambda key: 1, effect=TRANSACTIONAL, needs_approval=True)

    run = executed(post)
    approve(run)
    assert execute_again(run, post).status == RunStatus.COMPLETED
    assert step_of(run, "post?").used_at is not None


def test_a_setting_has_every_write_and_no_read_wait_for_an_approval(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "WRITES_NEED_APPROVAL": True}

    def agent(segment: Segment) -> Any:
        segment.step("look", lambda key: 1, effect=READ)
        return segment.step("send", lambda key: 2)

    run = executed(agent)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL
    assert open_question(run).key == "send?"


def test_two_questions_and_a_running_read_park_once_and_go_on_when_all_are_answered() -> None:
    bodies: list[str] = []

    async def body(name: str) -> str:
        await asyncio.sleep(0.02)
        bodies.append(name)
        return name

    async def agent(segment: Segment) -> Any:
        return await asyncio.gather(
            segment.astep("first", lambda key: body("first"), needs_approval=True),
            segment.astep("look", lambda key: body("look"), effect=READ),
            segment.astep("second", lambda key: body("second"), needs_approval=True),
            segment.await_input("which", {"schema": {"type": "string"}}),
        )

    run = executed(agent)
    assert bodies == ["look"], "the read that was going on is finished and recorded"
    assert step_of(run, "look").state == "recorded"
    assert {q.key for q in run.journal().open_questions()} == {"first?", "second?", "which"}
    for key in ("first?", "second?"):
        api.decide(run.uuid, key, True, by="boss", digest=step_of(run, key).digest)
    assert reread(run).status == RunStatus.WAITING_FOR_INPUT
    run.answer("which", Payload.of("this"), by="boss")
    done = execute_again(reread(run), agent)
    assert done.status == RunStatus.COMPLETED
    assert sorted(bodies) == ["first", "look", "second"]
    output = AgentRun.objects.get(pk=run.pk).output
    assert output == Payload.of(["first", "look", "second", "this"])


def test_an_answer_is_taken_only_by_the_question_that_waits_for_it() -> None:
    def ask(segment: Segment) -> Any:
        return segment.wait_for_input("which", "A or B?")

    run = executed(ask)
    assert run.status == RunStatus.WAITING_FOR_INPUT
    with pytest.raises(TransitionRefused):
        run.answer("another", Payload.of("A"), by="boss")
    with pytest.raises(TransitionRefused):
        run.decide("which", True, by="boss", digest=open_question(run).digest)
    assert open_question(run).kind == StepKind.INPUT
    run.answer("which", Payload.of("A"), by="boss")
    assert execute_again(reread(run), ask).status == RunStatus.COMPLETED


def test_a_waiting_run_can_be_cancelled() -> None:
    mailer = Mailer()
    run = executed(mailer)
    assert run.cancel(by="somebody") is RunStatus.CANCELLED
    with pytest.raises(TransitionRefused):
        run.decide("send?", True, by="boss", digest=step_of(run, "send?").digest)


def test_a_fence_of_another_write_keeps_a_run_from_being_parked() -> None:
    run, claimed, _step = fenced(WRITE)
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        run.suspend(claimed)
    assert snapshot(run) == before


class FailsOnce:
    """An approved write, and after it a step whose first execution fails in a way that passes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.failures = [ConnectionError("503")]

    def __call__(self, segment: Segment) -> Any:
        segment.step("send", self.sent.append, needs_approval=True)
        return segment.step("go on", self.go_on, effect=READ)

    def go_on(self, key: str) -> str:
        if self.failures:
            raise self.failures.pop()
        return "done"


def test_an_approved_write_is_replayed_after_a_later_step_failed() -> None:
    agent = FailsOnce()
    run = executed(agent)
    approve(run)
    assert execute_again(run, agent).status == RunStatus.QUEUED
    done = execute_again(run, agent)
    assert done.status == RunStatus.COMPLETED, done.error_message
    assert len(agent.sent) == 1


def test_a_denial_that_nobody_handles_is_the_reason_why_the_run_ended() -> None:
    def agent(segment: Segment) -> Any:
        return segment.step("send", lambda key: 1, needs_approval=True)

    run = executed(agent)
    approve(run, approved=False)
    done = execute_again(run, agent)
    assert (done.status, done.termination_reason) == (RunStatus.FAILED, "approval_denied")


def test_several_approvals_are_asked_for_before_the_first_call_is_made() -> None:
    sent: list[str] = []

    async def send(key: str) -> None:
        sent.append(key)

    async def agent(segment: Segment) -> Any:
        names = ("first", "second")
        await asyncio.gather(
            *[segment.await_approval(name, key=name, arguments={"to": name}) for name in names],
            return_exceptions=True,
        )
        for name in names:
            await segment.astep(name, send, key=name, arguments={"to": name}, needs_approval=True)

    run = executed(agent)
    assert {question.key for question in run.journal().open_questions()} == {"first?", "second?"}
    for key in ("first?", "second?"):
        api.decide(run.uuid, key, True, by="boss", digest=step_of(run, key).digest)
    done = execute_again(reread(run), agent)
    assert done.status == RunStatus.COMPLETED, done.error_message
    assert len(sent) == 2
