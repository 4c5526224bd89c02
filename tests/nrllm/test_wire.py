"""The real client library against a local server that speaks OpenAI's wire format."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart

from agentruns.enums import RunStatus, TerminationReason, ToolEffect
from agentruns.models import AgentRun
from nrllm import effect, event_place, register_agent
from tests.nrllm.support import (
    accept,
    execute,
    failure_of_last_retry,
    keys,
    openai_model,
    output,
    step_named,
)
from tests.servers.client import WireClient

pytestmark = pytest.mark.usefixtures("settings_for_runs")

ORDER = "order 7"
WAYS = ["whole", "streamed"]
CALLS = [
    {"name": "look_up", "arguments": {"order": 7}},
    {"name": "send_email", "arguments": {"to": "x"}},
]


WHOLE_AND_STREAMED = pytest.mark.parametrize("done", [False, True], ids=WAYS, indirect=True)


@pytest.fixture
def done(request: pytest.FixtureRequest, openai_wire: WireClient) -> list[str]:
    """Register an agent that looks up and sends; return what its tools did.

    With the parameter True its answers are streamed to a handler.
    """
    done: list[str] = []
    agent = Agent(openai_model(openai_wire), name="clerk")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def look_up(order: int) -> str:
        done.append(f"look_up {order}")
        return "late"

    @agent.tool_plain
    async def send_email(to: str) -> str:
        done.append(f"send_email {to}")
        return "sent"

    handler = read_all if getattr(request, "param", False) else None
    register_agent("clerk", agent, event_stream_handler=handler)
    return done


async def read_all(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


def script(wire: WireClient, *turns: dict[str, Any], **fault: Any) -> None:
    wire.script({ORDER: list(turns)}, [fault] if fault else [])


def begin() -> AgentRun:
    return execute(accept("clerk", f"where is {ORDER}?"))


def test_text(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"text": "It is late."})
    run = begin()
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "It is late."


def test_parallel_tools(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"tool_calls": CALLS}, {"text": "Done."})
    run = begin()
    assert output(run) == "Done."
    assert sorted(done) == ["look_up 7", "send_email x"]
    assert len(openai_wire.requests()) == 2


@WHOLE_AND_STREAMED
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"status": 500}, "ModelServerError"),
        ({"status": 503}, "ModelUnavailableError"),
        ({"status": 429, "retry_after": 0}, "ModelRateLimitError"),
        ({"cut": True}, "ModelConnectionError"),
    ],
    ids=["500", "503", "429", "cut"],
)
def test_a_failure_that_passes_is_retried_without_repeating_the_write(
    openai_wire: WireClient, done: list[str], fault: dict[str, Any], error: str
) -> None:
    script(openai_wire, {"tool_calls": CALLS}, {"text": "Done."}, turn=1, **fault)
    run = begin()
    assert run.status == RunStatus.QUEUED, run.error_message
    assert failure_of_last_retry(run)[0] == error
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert sorted(done) == ["look_up 7", "send_email x"]
    assert [request["turn"] for request in openai_wire.requests()] == [0, 1, 1]
    assert len({request["stream"] for request in openai_wire.requests()}) == 1


def test_the_client_repeats_nothing_by_itself(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"text": "Done."}, times=-1, status=500)
    begin()
    assert len(openai_wire.requests()) == 1


@WHOLE_AND_STREAMED
def test_retry_after_delays_the_next_attempt(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"text": "Done."}, status=429, retry_after=90)
    run = begin()
    assert run.status == RunStatus.QUEUED
    assert run.available_at is not None
    assert (run.available_at - run.created_at).total_seconds() > 60


@pytest.mark.parametrize(
    ("status", "message"), [(401, "bad key"), (400, "context_length_exceeded"), (404, "no model")]
)
def test_a_failure_that_stays_dead_letters_the_run(
    openai_wire: WireClient, done: list[str], status: int, message: str
) -> None:
    script(openai_wire, {"text": "Done."}, status=status, message=message)
    run = begin()
    assert run.status == RunStatus.FAILED
    assert run.termination_reason in {
        TerminationReason.NOT_RETRYABLE,
        TerminationReason.PROVIDER_FAILED,
    }
    assert message in run.error_message


def test_malformed_arguments_are_refused_before_the_stamp(
    openai_wire: WireClient, done: list[str]
) -> None:
    broken = [{"name": "send_email", "arguments": '{"to": 1'}]
    script(openai_wire, {"tool_calls": broken}, {"tool_calls": CALLS[1:]}, {"text": "Done."})
    run = begin()
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send_email x"]


def test_a_content_filter_stop_is_denied_by_policy(
    openai_wire: WireClient, done: list[str]
) -> None:
    script(openai_wire, {"text": "", "finish_reason": "content_filter"})
    run = begin()
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.POLICY_DENIED


def test_events_are_streamed_and_not_repeated_on_replay(openai_wire: WireClient) -> None:
    seen: list[str] = []
    agent = Agent(openai_model(openai_wire), name="clerk")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def look_up(order: int) -> str:
        return "late"

    async def handler(ctx: Any, events: Any) -> None:
        async for event in events:
            seen.append(describe(event))

    register_agent("clerk", agent, event_stream_handler=handler)
    script(openai_wire, {"tool_calls": CALLS[:1]}, {"text": "It is late."}, turn=1, status=503)
    run = begin()
    assert run.status == RunStatus.QUEUED, run.error_message
    before = list(seen)
    run = execute(run)

    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "It is late."
    assert all(request["stream"] for request in openai_wire.requests())
    assert seen[: len(before)] == before
    assert seen.count("function_tool_call look_up") == 1
    assert seen.count("function_tool_result look_up") == 1
    assert "".join(event[5:] for event in seen if event.startswith("text ")) == "It is late."


def describe(event: AgentStreamEvent) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return f"text {event.part.content}"
    if isinstance(event, PartDeltaEvent):
        return f"text {getattr(event.delta, 'content_delta', '') or ''}"
    part = getattr(event, "part", None)
    return f"{event.event_kind} {getattr(part, 'tool_name', '')}"


def test_a_stream_that_is_cut_is_asked_again(openai_wire: WireClient, done: list[str]) -> None:
    heard: dict[tuple[str, int], list[str]] = {}

    async def handler(ctx: Any, events: Any) -> None:
        async for event in events:
            place = event_place()
            heard.setdefault((place.step, place.epoch), []).append(describe(event))

    agent = Agent(openai_model(openai_wire), name="teller")
    register_agent("teller", agent, event_stream_handler=handler)
    script(openai_wire, {"text": "It is late, and will be later."}, cut=True)
    run = execute(accept("teller", f"where is {ORDER}?"))
    assert run.status == RunStatus.QUEUED, run.error_message
    assert failure_of_last_retry(run)[0] == "ModelConnectionError"
    run = execute(run)
    assert output(run) == "It is late, and will be later."
    (cut, whole) = heard.items()
    assert (cut[0], whole[0]) == (("model:1", 1), ("model:1", 2))
    assert 0 < len(cut[1]) < len(whole[1])
    said = "".join(event[5:] for event in whole[1] if event.startswith("text "))
    assert said == "It is late, and will be later."


def test_calls_with_one_id_in_one_response_are_told_apart(
    openai_wire: WireClient, done: list[str]
) -> None:
    twice = [
        {"id": "call_0", "name": "send_email", "arguments": {"to": to}} for to in ("x", "y", "x")
    ]
    script(openai_wire, {"tool_calls": twice}, {"text": "Done."})
    run = begin()
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send_email x", "send_email y", "send_email x"]
    assert "tool:1:call_0#3" in keys(run)


def test_the_same_id_in_another_response_is_another_call(
    openai_wire: WireClient, done: list[str]
) -> None:
    again = {"tool_calls": [{"id": "call_0", "name": "send_email", "arguments": {"to": "x"}}]}
    script(openai_wire, again, again, {"text": "Done."})
    run = begin()
    assert done == ["send_email x", "send_email x"]
    assert {"tool:1:call_0", "tool:2:call_0"} <= set(keys(run))


def test_usage_counts_what_was_replayed(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"tool_calls": CALLS}, {"text": "Done."}, turn=1, status=503)
    run = execute(begin())
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert run.usage is not None
    assert run.usage.value["requests"] == 2
    assert run.usage.value["input_tokens"] == 40


def test_a_step_names_the_model(openai_wire: WireClient, done: list[str]) -> None:
    script(openai_wire, {"text": "Done."})
    assert step_named(begin(), "gpt-test").effect == ToolEffect.READ_ONLY
