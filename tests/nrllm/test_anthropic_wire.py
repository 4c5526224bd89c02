"""The real client library against a local server that speaks Anthropic's wire format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun
from nrllm import effect, register_agent
from tests.nrllm.support import CLIENT_SECONDS, accept, execute, failure_of_last_retry, output
from tests.servers.client import WireClient
from tests.servers.process import ServerProcess

pytestmark = pytest.mark.usefixtures("settings_for_runs")

ORDER = "order 7"
CALLS = [
    {"name": "look_up", "arguments": {"order": 7}},
    {"name": "send_email", "arguments": {"to": "x"}},
]
TEXT = "It is late, and will be later."


@pytest.fixture
def wire() -> Iterator[WireClient]:
    with ServerProcess("anthropic_wire") as server:
        yield WireClient(server.url)


def anthropic_model(wire: WireClient) -> AnthropicModel:
    provider = AnthropicProvider(base_url=f"http://{wire.address}", api_key="none")
    provider.client.max_retries = 0
    provider.client.timeout = CLIENT_SECONDS
    return AnthropicModel("claude-test", provider=provider)


class Clerk:
    """An agent that looks up and sends; with `streamed`, it is asked for streams."""

    def __init__(self, wire: WireClient, *, streamed: bool = False) -> None:
        self.done: list[str] = []
        self.text: list[str] = []
        agent: Agent[None, str] = Agent(anthropic_model(wire), name="clerk")

        @agent.tool_plain
        @effect(ToolEffect.READ_ONLY)
        async def look_up(order: int) -> str:
            self.done.append(f"look_up {order}")
            return "late"

        @agent.tool_plain
        async def send_email(to: str) -> str:
            self.done.append(f"send_email {to}")
            return "sent"

        handler = self.hear if streamed else None
        register_agent("clerk", agent, event_stream_handler=handler)

    async def hear(self, ctx: Any, events: Any) -> None:
        async for event in events:
            if event.event_kind in {"part_start", "part_delta"}:
                said = event.part if event.event_kind == "part_start" else event.delta
                text = getattr(said, "content", None) or getattr(said, "content_delta", None)
                self.text.append(text if isinstance(text, str) else "")


def script(wire: WireClient, *turns: dict[str, Any], **fault: Any) -> None:
    wire.script({ORDER: list(turns)}, [fault] if fault else [])


def begin() -> AgentRun:
    return execute(accept("clerk", f"where is {ORDER}?"))


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_text_and_parallel_tools(wire: WireClient, streamed: bool) -> None:
    clerk = Clerk(wire, streamed=streamed)
    script(wire, {"tool_calls": CALLS}, {"text": TEXT, "usage": {"input": 40, "output": 7}})
    run = begin()
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == TEXT
    assert sorted(clerk.done) == ["look_up 7", "send_email x"]
    assert "".join(clerk.text) == (TEXT if streamed else "")
    assert [request["stream"] for request in wire.requests()] == [streamed, streamed]
    assert run.usage is not None
    assert run.usage.value["input_tokens"] == 60


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"status": 500}, "ModelServerError"),
        ({"status": 529}, "ModelOverloadedError"),
        ({"status": 429, "retry_after": 0}, "ModelRateLimitError"),
        ({"cut": True}, "ModelConnectionError"),
    ],
    ids=["500", "529", "429", "cut"],
)
def test_a_failure_that_passes_is_retried_without_repeating_the_write(
    wire: WireClient, fault: dict[str, Any], error: str, streamed: bool
) -> None:
    clerk = Clerk(wire, streamed=streamed)
    script(wire, {"tool_calls": CALLS}, {"text": TEXT}, turn=1, **fault)
    run = begin()
    assert run.status == RunStatus.QUEUED, run.error_message
    assert failure_of_last_retry(run)[0] == error
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == TEXT
    assert sorted(clerk.done) == ["look_up 7", "send_email x"]
    assert [request["turn"] for request in wire.requests()] == [0, 1, 1]


def test_retry_after_delays_the_next_attempt(wire: WireClient) -> None:
    Clerk(wire)
    script(wire, {"text": TEXT}, status=429, retry_after=90)
    run = begin()
    assert run.status == RunStatus.QUEUED
    assert run.available_at is not None
    assert (run.available_at - run.created_at).total_seconds() > 60


@pytest.mark.parametrize("status", [401, 400, 404])
def test_a_failure_that_stays_dead_letters_the_run(wire: WireClient, status: int) -> None:
    Clerk(wire)
    script(wire, {"text": TEXT}, status=status, message="for good")
    run = begin()
    assert run.status == RunStatus.FAILED
    assert "for good" in run.error_message
