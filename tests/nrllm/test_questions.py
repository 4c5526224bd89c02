from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import FunctionModel

from agentruns import api
from agentruns.enums import RunStatus, ToolEffect
from agentruns.exceptions import PayloadError
from agentruns.models import AgentRun
from nrllm import ask_human, ask_person, effect, register_agent
from nrllm.exceptions import AgentRefused
from tests.nrllm.support import (
    Scripted,
    accept,
    arguments,
    called,
    calls,
    execute,
    fenced,
    output,
    says,
    steps,
)

pytestmark = pytest.mark.usefixtures("settings_for_runs")


class Size(BaseModel):
    width: int
    unit: str = "cm"


def even(number: int) -> int:
    if number % 2:
        raise ValueError("an odd number")
    return number


def waiting_for(run: AgentRun) -> list[str]:
    return [question.key for question in run.journal().open_questions().order_by("key")]


def registered(model: Scripted, answer: Any, done: list[Any]) -> None:
    agent: Agent[None, str] = Agent(model.model, name="asker")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def measure(what: str) -> str:
        done.append(f"before {what}")
        size = await ask_person(f"How wide is the {what}?", answer)
        done.append(size)
        return f"{size}"

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def look() -> str:
        done.append("look")
        return "seen"

    register_agent("asker", agent)


def test_a_tool_gets_an_answer_of_the_type_that_it_asked_for() -> None:
    done: list[Any] = []
    model = Scripted(calls(called("measure", "m1", what="door")), says("Thanks."))
    registered(model, Size, done)
    run = execute(accept("asker"))
    assert run.status == RunStatus.WAITING_FOR_INPUT, run.error_message
    assert (run.pending_effect, run.lease_expires_at) == ("", None)
    (question,) = run.journal().open_questions()
    asked = arguments(question)
    assert asked["question"] == "How wide is the door?"
    assert asked["schema"]["properties"]["width"] == {"title": "Width", "type": "integer"}
    api.submit_input(run.uuid, question.key, {"width": 7}, by="ann")
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done[-1] == Size(width=7)
    assert done.count("before door") == 3, "asking, asking again in another segment, answered"


@pytest.mark.parametrize("answer", ["wide", {"width": "seven"}, {}, None])
def test_an_answer_that_does_not_fit_is_refused_when_it_is_given(answer: Any) -> None:
    model = Scripted(calls(called("measure", "m1", what="door")), says("Thanks."))
    registered(model, Size, [])
    run = execute(accept("asker"))
    with pytest.raises(PayloadError, match="does not fit"):
        api.submit_input(run.uuid, "tool:1:m1?1", answer, by="ann")
    assert waiting_for(run) == ["tool:1:m1?1"]


def test_an_answer_that_json_does_not_have_is_refused() -> None:
    model = Scripted(calls(called("measure", "m1", what="door")), says("Thanks."))
    registered(model, float, [])
    run = execute(accept("asker"))
    with pytest.raises(PayloadError, match="not JSON compliant"):
        api.submit_input(run.uuid, "tool:1:m1?1", float("nan"), by="ann")
    assert waiting_for(run) == ["tool:1:m1?1"]


def test_what_a_schema_cannot_say_is_asked_again_with_the_reason() -> None:
    done: list[Any] = []
    model = Scripted(calls(called("measure", "m1", what="door")), says("Thanks."))
    registered(model, Annotated[int, AfterValidator(even)], done)
    run = execute(accept("asker"))
    api.submit_input(run.uuid, "tool:1:m1?1", 7, by="ann")
    run = execute(run)
    assert run.status == RunStatus.WAITING_FOR_INPUT, run.error_message
    (question,) = run.journal().open_questions()
    assert arguments(question)["refused"] == 7
    assert "an odd number" in arguments(question)["why"]
    api.submit_input(run.uuid, question.key, 8, by="ann")
    assert execute(run).status == RunStatus.COMPLETED
    assert done[-1] == 8


def test_two_questions_and_a_read_of_one_response() -> None:
    done: list[Any] = []
    model = Scripted(
        calls(
            called("measure", "m1", what="door"),
            called("look", "l1"),
            called("measure", "m2", what="wall"),
        ),
        says("Thanks."),
        failures={1: [ModelHTTPError(503, "scripted")]},
    )
    registered(model, int, done)
    run = execute(accept("asker"))
    assert waiting_for(run) == ["tool:1:m1?1", "tool:1:m2?1"]
    api.submit_input(run.uuid, "tool:1:m2?1", 2, by="ann")
    api.submit_input(run.uuid, "tool:1:m1?1", 1, by="ann")
    run = execute(run)
    assert run.status == RunStatus.QUEUED, "the next request to the model failed"
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done.count("look") == 1
    assert sorted(one for one in done if isinstance(one, int)) == [1, 2]
    assert {step.key for step in steps(run)} >= {"tool:1:m1", "tool:1:m2", "tool:1:l1"}


async def somebody() -> str:
    return str(await ask_person("To whom?"))


async def send() -> str:
    return str(await ask_person("To whom?"))


async def send_to_each() -> list[str]:
    async def one() -> str:
        return str(await ask_person("To whom?"))

    return [await one(), await one()]


@pytest.mark.parametrize("tool", [send, send_to_each])
def test_a_write_that_asks_is_refused_when_its_agent_is_registered(tool: Any) -> None:
    agent: Agent[None, str] = Agent("test", name="asker", tools=[tool])
    with pytest.raises(AgentRefused, match="Ask in a tool that reads"):
        register_agent("asker", agent)
    read = Agent("test", name="reader", tools=[tool])
    registered = register_agent("reader", read, effects={tool.__name__: ToolEffect.READ_ONLY})
    assert registered.agent is read


def test_a_tool_that_asks_is_refused_before_the_stamp_where_a_run_first_shows_it() -> None:
    model = Scripted(calls(called("send", "w1")), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="asker")
    register_agent("asker", agent)
    agent.tool_plain(send)
    run = execute(accept("asker"))
    assert (run.status, run.pending_effect, run.error_class) == ("failed", "", "AgentRefused")


def test_a_write_whose_code_asks_elsewhere_may_not_ask_and_its_fence_stands() -> None:
    model = Scripted(calls(called("send", "w1")), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="asker")

    @agent.tool_plain(name="send")
    async def send_to_somebody() -> str:
        return await somebody()

    register_agent("asker", agent)
    run = execute(accept("asker"))
    assert "Ask in a tool that reads" in run.error_message
    assert fenced(run).name == "send"


def test_the_model_asks_a_person_by_a_tool_of_its_own() -> None:
    model = Scripted(calls(called("ask_human", "q1", question="Which?")), says("That one, then."))
    register_agent("asker", Agent(model.model, name="asker", toolsets=[ask_human(bool)]))
    run = execute(accept("asker"))
    with pytest.raises(PayloadError):
        api.submit_input(run.uuid, "tool:1:q1?1", "yes", by="ann")
    api.submit_input(run.uuid, "tool:1:q1?1", True, by="ann")
    run = execute(run)
    assert output(run) == "That one, then."
    assert "True" in str(model.asked[-1]) or "true" in str(model.asked[-1])


def test_an_event_handler_asks_nobody_and_has_no_request_repeated() -> None:
    asked: list[int] = []

    async def stream(messages: Any, info: Any) -> Any:
        asked.append(len(messages))
        yield "Done."

    async def handler(ctx: Any, events: Any) -> None:
        await ask_person("May I?")

    agent: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name="asker")
    register_agent("asker", agent, event_stream_handler=handler)
    run = execute(accept("asker"))
    assert (run.status, run.error_class, asked) == (RunStatus.FAILED, "LookupError", [1])


def test_nobody_can_be_asked_outside_a_durable_run() -> None:
    with pytest.raises(LookupError):
        asyncio.run(ask_person("Anybody there?"))
