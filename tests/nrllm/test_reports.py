"""A tool call that was interrupted, and what a destination or a person reports about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from django.utils import timezone
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturn, ToolReturnPart

from agentruns import api, registry
from agentruns.enums import EventKind, Resolution, RunStatus, ToolEffect
from agentruns.exceptions import PayloadError, ResultRefused
from agentruns.models import AgentRun, Event, Step
from agentruns.tasks import execute as work
from nrllm import (
    Answer,
    Declaration,
    EffectNotApplied,
    WriteInDoubt,
    effect,
    idempotency_key,
    register_agent,
)
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


def test_a_final_destination_that_has_closed_the_key_has_the_model_told() -> None:
    keys: list[str] = []

    def charge() -> str:
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise ConnectionResetError("cut")
        raise EffectNotApplied("this key is closed")

    model = Scripted(calls(called("charge", "c1")), says("Not paid."))
    declared = Declaration(WRITE, verify=lambda doubt: Answer.not_landed(), verify_is_final=True)
    register_agent(
        "till", Agent(model.model, name="till", tools=[charge]), effects={"charge": declared}
    )
    run = execute(accept("till"))
    work(str(run.uuid))
    run = execute(run)
    assert (run.status, output(run)) == (RunStatus.COMPLETED, "Not paid."), run.error_message
    assert (
        keys == [Step.objects.filter(run=run, name="charge").latest("attempt").idempotency_key] * 2
    )
    assert "this key is closed" in str(model.asked[-1])


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


def test_what_does_not_fit_is_named_and_never_the_value() -> None:
    Till()
    run = interrupted()
    with pytest.raises(ResultRefused, match="number: Input should be a valid integer") as refused:
        resolve(run, {"number": "a secret"})
    assert "a secret" not in str(refused.value)
    assert "https:" not in str(refused.value)


def test_a_destinations_answer_that_does_not_fit_is_not_in_the_history() -> None:
    Till(Answer.landed({"number": "a secret"}))
    run = interrupted()
    work(str(run.uuid))
    event = Event.objects.get(run=run, kind=EventKind.VERIFIED)
    assert event.data is not None
    assert "can't have returned" in event.data.text
    assert "a secret" not in event.data.text


@dataclass
class Sent:
    to: str
    at: datetime


class NotOfPydantic:
    pass


@pytest.mark.parametrize(
    ("returns", "fits", "does_not", "kept"),
    [
        (Receipt, {"number": 7}, {"number": "x"}, {"number": 7, "paid": True}),
        (list[int], [1, 2], [1, "x"], [1, 2]),
        (tuple[int, str], [1, "a"], [1], [1, "a"]),
        (None, None, 1, None),
        (str, "sent", 7, "sent"),
        (int | None, None, "x", None),
        (Literal["sent", "queued"], "sent", "lost", "sent"),
        (
            Sent,
            {"to": "ann", "at": "2026-01-02T03:04:05Z"},
            {"to": "ann", "at": "soon"},
            {"to": "ann", "at": "2026-01-02T03:04:05Z"},
        ),
    ],
    ids=str,
)
def test_a_result_is_held_to_what_the_tool_declares_that_it_returns(
    returns: Any, fits: Any, does_not: Any, kept: Any
) -> None:
    run = sending(returns)
    assert schema_of(run) == TypeAdapter(returns).json_schema()
    with pytest.raises(ResultRefused):
        resolve(run, does_not)
    resolve(run, fits)
    assert result(step_named(run, "send"))["result"] == kept


@pytest.mark.parametrize("returns", [Any, ToolReturn, ToolReturn[str], NotOfPydantic, "Nowhere"])
def test_where_nothing_is_declared_any_json_is_taken(returns: Any) -> None:
    run = sending(returns)
    assert schema_of(run) is None
    resolve(run, {"any": ["thing"]})


def sending(returns: Any) -> AgentRun:
    """A run interrupted in a tool whose annotation says that it returns this."""
    model = Scripted(calls(called("send", "w1")), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="till")

    async def send() -> Any:
        raise ConnectionResetError("cut")

    agent.tool_plain(send)
    send.__annotations__["return"] = returns
    register_agent("till", agent)
    return execute(accept("till"))


def schema_of(run: AgentRun) -> Any:
    return registry.result_schema(run.agent, fenced(run))


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
