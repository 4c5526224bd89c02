from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db.models.functions import Now

from agentruns import registry
from agentruns.enums import EventKind, Resolution, RunStatus
from agentruns.models import AgentRun
from agentruns.reaper import sweep
from agentruns.registry import Answer, RegisteredAgent, Verifier, WriteInDoubt
from agentruns.segment import Segment
from agentruns.tasks import execute
from agentruns.verification import take_due
from tests.factories import call, expire, history, queued, reap, reread, step_of

pytestmark = pytest.mark.django_db(transaction=True)


class Destination:
    """Counts what is sent to it, breaks the first connection, and answers questions."""

    def __init__(self, *answers: Answer | Exception, is_final: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[WriteInDoubt] = []
        self.sent: list[str] = []
        self.verifier = Verifier(self.ask, is_final)

    def send(self, key: str) -> str:
        self.sent.append(key)
        if len(self.sent) == 1:
            raise ConnectionResetError("cut")
        return "sent"

    def ask(self, doubt: WriteInDoubt) -> Answer:
        self.asked.append(doubt)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def agent(self, segment: Segment) -> Any:
        return segment.step("send", self.send, arguments={"to": "a@example.org"})


@contextmanager
def in_doubt(destination: Destination) -> Iterator[AgentRun]:
    """A run that was interrupted in a write to this destination."""
    agent = RegisteredAgent("dubious", destination.agent, verifiers={"send": destination.verifier})
    registry.add(agent)
    try:
        run = queued("dubious")
        execute(str(run.uuid))
        assert reread(run).termination_reason == "interrupted_write"
        yield reread(run)
    finally:
        del registry._agents["dubious"]


def ask_again_now(run: AgentRun) -> None:
    run.journal().update(ask_after=Now())


def test_a_write_that_landed_is_recorded_and_the_run_goes_on_without_a_person() -> None:
    destination = Destination(Answer.landed("sent"))
    with in_doubt(destination) as run:
        execute(str(run.uuid))
        row = reread(run)
        assert (row.status, row.pending_effect) == (RunStatus.QUEUED, "")
        execute(str(run.uuid))
        done = AgentRun.objects.get(pk=run.pk)
    assert done.status == RunStatus.COMPLETED
    assert done.output is not None
    assert done.output.value == "sent"
    assert len(destination.sent) == 1
    doubt = destination.asked[0]
    assert (doubt.idempotency_key, doubt.arguments) == (
        destination.sent[0],
        {"to": "a@example.org"},
    )
    assert history(run)[-4:] == [
        EventKind.VERIFIED,
        EventKind.RESOLVED,
        EventKind.CLAIMED,
        EventKind.COMPLETED,
    ]


def test_a_write_that_did_not_land_is_put_before_a_person(settings: Any) -> None:
    destination = Destination(Answer.not_landed("no such message"))
    with in_doubt(destination) as run:
        # What the body may have left behind counts as over.
        settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_STEP_SECONDS": 0}
        execute(str(run.uuid))
        row = reread(run)
        assert (row.status, row.pending_effect) == (RunStatus.FAILED, "non_idempotent_write")
        assert step_of(run, "send").testimony == "not_landed"
        execute(str(run.uuid))
    assert len(destination.asked) == 1, "an answer is not asked for again"
    assert len(destination.sent) == 1


def test_a_final_destination_that_has_not_seen_the_key_has_the_write_executed_again() -> None:
    destination = Destination(Answer.not_landed(), is_final=True)
    with in_doubt(destination) as run:
        execute(str(run.uuid))
        execute(str(run.uuid))
        assert reread(run).status == RunStatus.COMPLETED
    assert len(set(destination.sent)) == 1, "with the same idempotency key"
    assert len(destination.sent) == 2


def test_a_no_that_came_while_the_former_worker_could_act_does_not_count() -> None:
    destination = Destination(Answer.not_landed("not yet"), Answer.landed("sent"))
    agent = RegisteredAgent("dubious", destination.agent, verifiers={"send": destination.verifier})
    registry.add(agent)
    try:
        run = queued("dubious")
        taken = AgentRun.objects.claim(run.uuid, "test:host:1:0")
        assert taken is not None
        run.mark_pending_effect(taken[1], call("send", arguments={"to": "a@example.org"}))
        expire(run)
        reap(run)
        execute(str(run.uuid))
        step = step_of(run, "send")
        assert (step.testimony, step.asked_count) == ("too_early", 0)
        assert step.asked_again_at is not None
        assert reread(run).testimony_note() == "not yet"
        assert take_due(10) == [], "not before the worker counts as gone"
        ask_again_now(run)
        execute(str(run.uuid))
        assert reread(run).status == RunStatus.QUEUED, "then the destination said that it landed"
    finally:
        del registry._agents["dubious"]


class Poisoned(Destination):
    """Each write of it breaks, and it never sees a key."""

    def send(self, key: str) -> str:
        self.sent.append(key)
        raise ConnectionResetError("cut")


def test_a_final_destination_can_not_keep_a_poisoned_run_alive_for_ever(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_REQUEUES": 2}
    destination = Poisoned(*[Answer.not_landed() for _ in range(9)], is_final=True)
    with in_doubt(destination) as run:
        for _ in range(20):
            execute(str(run.uuid))
        row = reread(run)
    assert (row.status, row.termination_reason) == (RunStatus.FAILED, "interrupted_write")
    assert len(destination.sent) == 3, "the first time and two retries"


def test_a_run_that_executes_again_is_not_asked_about() -> None:
    destination = Destination()
    with in_doubt(destination) as run:
        row = reread(run)
        row.resolve(
            Resolution.DID_NOT_HAPPEN,
            by="boss",
            reason="checked",
            digest=row.resolution_digest(),
            worker_may_act_confirmed=True,
        )
        taken = AgentRun.objects.claim(run.uuid, "test:host:1:0")
        assert taken is not None
        again = call("send", arguments={"to": "a@example.org"})
        reread(run).mark_pending_effect(taken[1], again)
        execute(str(run.uuid))
        assert destination.asked == []
        assert step_of(run, "send").testimony == ""


def test_an_unknown_answer_is_asked_again_later_and_in_the_end_no_more(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "VERIFY_ATTEMPTS": 3, "VERIFY_BACKOFF_SECONDS": 60}
    destination = Destination(Answer.unknown(), OSError("away"), Answer.unknown())
    with in_doubt(destination) as run:
        for asked in (1, 2, 3):
            assert take_due(10) == [run.uuid]
            execute(str(run.uuid))
            assert len(destination.asked) == asked
            assert take_due(10) == [], "not before the pause has ended"
            ask_again_now(run)
        assert take_due(10) == []
        execute(str(run.uuid))
    assert len(destination.asked) == 3
    assert reread(run).status == RunStatus.FAILED
    assert history(run).count(EventKind.VERIFIED) == 3


def test_a_verdict_of_a_person_meanwhile_is_not_overruled() -> None:
    destination = Destination(Answer.landed("sent"))

    def resolve_first(doubt: WriteInDoubt) -> Answer:
        row = reread(run)
        row.resolve(Resolution.LEFT, by="boss", reason="mine", digest=row.resolution_digest())
        return Answer.landed("sent")

    destination.verifier = Verifier(resolve_first)
    with in_doubt(destination) as run:
        execute(str(run.uuid))
    row = reread(run)
    assert (row.status, row.resolution) == (RunStatus.FAILED, "left")
    assert step_of(run, "send").state == "uncertain"


def test_the_sweep_puts_a_write_in_doubt_before_a_worker_and_again_after_a_pause(
    settings: Any,
) -> None:
    destination = Destination()
    with in_doubt(destination):
        assert sweep().asked == 1
        assert sweep().asked == 0, "nobody has come yet, and may have much to do"
        no_pause = {"WAKE_AGAIN_SECONDS": 0, "WAKE_AGAIN_MAX_SECONDS": 0}
        settings.AGENTRUNS = {**settings.AGENTRUNS, **no_pause}
        assert sweep().asked == 1


def test_a_step_without_a_verifier_is_asked_about_nowhere() -> None:
    destination = Destination()
    with in_doubt(destination) as run:
        registry._agents["dubious"] = RegisteredAgent(
            "dubious", destination.agent, verifiers={"another": destination.verifier}
        )
        assert take_due(10) == []
        execute(str(run.uuid))
    assert destination.asked == []
