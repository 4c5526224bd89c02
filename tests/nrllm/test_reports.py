"""A tool call that was interrupted, and what a destination or a person reports about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart

from agentruns import api
from agentruns.enums import EventKind, Resolution, RunStatus, ToolEffect
from agentruns.exceptions import PayloadError
from agentruns.models import AgentRun, Event
from agentruns.tasks import execute as work
from nrllm import Answer, Declaration, WriteInDoubt, effect, register_agent
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    output,
    reread,
    result,
    says,
    step_named,
)

pytestmark = pytest.mark.usefixtures("settings_for_runs")

WRITE = ToolEffect.NON_IDEMPOTENT_WRITE


class Receipt(BaseModel):
    number: int
    paid: bool = True


class Till:
    """An agent that charges; the first connections break after the money has moved, or not."""

    def __init__(self, *answers: Answer, breaks: int = 1, final: bool = False, name: str = "till"):
        self.answers = list(answers)
        self.asked: list[WriteInDoubt] = []
        self.charged = 0
        self.model = Scripted(calls(called("charge", "c1", amount=7)), says("Paid."))
        agent: Agent[None, str] = Agent(self.model.model, name="till")
        verify = self.ask if answers else None

        @agent.tool_plain
        @effect(WRITE, verify=verify, verify_is_final=final)
        async def charge(amount: int) -> Receipt:
            self.charged += 1
            if self.charged <= breaks:
                raise ConnectionResetError("cut")
            return Receipt(number=self.charged)

        register_agent(name, agent)

    def ask(self, doubt: WriteInDoubt) -> Answer:
        self.asked.append(doubt)
        return self.answers.pop(0)

    def told(self) -> Any:
        parts = [part for message in self.model.asked[-1] for part in message.parts]
        return next(part.content for part in parts if isinstance(part, ToolReturnPart))


def interrupted() -> AgentRun:
    run = execute(accept("till"))
    assert fenced(run).name == "charge"
    return run


def let_the_worker_be_gone(run: AgentRun) -> None:
    """Let so much time have passed that nobody can be inside the write any more."""
    long_ago = timezone.now() - timedelta(days=1)
    Event.objects.filter(run=run, kind=EventKind.DEAD_LETTERED).update(at=long_ago)


def test_the_journal_keeps_a_reported_result_as_it_keeps_a_returned_one() -> None:
    till = Till(breaks=0, name="first")
    run = execute(accept("first"))
    returned, told = result(step_named(run, "charge")), till.told()
    till = Till(Answer.landed({"number": 1}))
    run = interrupted()
    work(str(run.uuid))
    assert result(step_named(run, "charge")) == returned
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "Paid."
    assert till.charged == 1
    assert till.told() == told == {"number": 1, "paid": True}
    (doubt,) = till.asked
    assert doubt.arguments == {"amount": 7}
    assert doubt.idempotency_key == step_named(run, "charge").idempotency_key


def test_a_destination_that_does_not_know_leaves_the_fence() -> None:
    till = Till(Answer.unknown())
    run = interrupted()
    work(str(run.uuid))
    assert fenced(run).testimony == "unknown"
    assert till.charged == 1


def test_not_landed_is_advice_for_a_person() -> None:
    till = Till(Answer.not_landed("no such charge"))
    run = interrupted()
    let_the_worker_be_gone(run)
    work(str(run.uuid))
    assert fenced(run).testimony == "not_landed"
    assert till.charged == 1


def test_a_final_not_landed_has_the_call_made_again() -> None:
    till = Till(Answer.not_landed(), final=True)
    run = interrupted()
    work(str(run.uuid))
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert till.charged == 2
    assert till.told() == {"number": 2, "paid": True}


def test_a_destination_whose_answer_the_tool_cannot_have_given_is_unknown() -> None:
    till = Till(Answer.landed({"number": "seven"}))
    run = interrupted()
    work(str(run.uuid))
    assert fenced(run).testimony == "unknown"
    assert till.charged == 1


def resolve(run: AgentRun, said: Any) -> None:
    digest = reread(run).resolution_digest()
    happened = Resolution.HAPPENED
    api.resolve(run.uuid, happened, by="ann", reason="seen", digest=digest, result=said)


def test_a_person_reports_the_plain_result_of_the_tool() -> None:
    till = Till()
    run = interrupted()
    with pytest.raises(PayloadError, match="can't have returned"):
        resolve(run, {"number": "seven"})
    resolve(run, {"number": 7})
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert till.charged == 1
    assert till.told() == {"number": 7, "paid": True}


def test_a_result_that_looks_like_pydantic_ais_own_wrapping_stays_what_it_is() -> None:
    model = Scripted(calls(called("send", "w1")), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="till")

    @agent.tool_plain
    async def send() -> dict[str, Any]:
        raise ConnectionResetError("cut")

    register_agent("till", agent)
    run = execute(accept("till"))
    said = {"kind": "tool-return", "return_value": 1}
    resolve(run, said)
    assert execute(run).status == RunStatus.COMPLETED
    parts = [part for message in model.asked[-1] for part in message.parts]
    assert [part.content for part in parts if isinstance(part, ToolReturnPart)] == [said]


def test_a_tool_that_one_does_not_own_is_verified_through_the_mapping() -> None:
    model = Scripted(calls(called("send", "w1")), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="till")

    @agent.tool_plain
    async def send() -> str:
        raise ConnectionResetError("cut")

    declared = Declaration(WRITE, verify=lambda doubt: Answer.landed("sent"))
    register_agent("till", agent, effects={"send": declared})
    run = execute(accept("till"))
    work(str(run.uuid))
    assert execute(run).status == RunStatus.COMPLETED
