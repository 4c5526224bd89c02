from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentruns.api import enqueue
from agentruns.enums import EventKind, TerminationReason, ToolEffect
from agentruns.models import AgentRun, Event, Step
from agentruns.runner import execute_claimed, owner_name
from tests.servers.client import WireClient
from tests.servers.waiting import wait_until

# How long a model's client waits, also for a connection, which it gives 5 s by itself.
CLIENT_SECONDS = 120.0

Turn = ModelResponse | Exception | Callable[[], Any]


class NobodyIsWoken:
    """The test itself executes segments, one by one."""

    def wake(self, uuid: UUID) -> None:
        return None


def accept(agent: str, request: Any = "go") -> AgentRun:
    run: AgentRun = AgentRun.objects.get(uuid=enqueue(agent, request).uuid)
    return run


def execute(run: AgentRun) -> AgentRun:
    """Claim the run and execute one segment of it; return the row as it is then."""
    taken = wait_until(
        lambda: AgentRun.objects.claim(run.uuid, owner_name("test")),
        what=lambda: f"a claim: {reread(run).status} {reread(run).error_message}",
    )
    assert taken is not None
    execute_claimed(*taken)
    return reread(run)


def reread(run: AgentRun) -> AgentRun:
    row: AgentRun = AgentRun.objects.get(pk=run.pk)
    return row


def output(run: AgentRun) -> Any:
    stored = AgentRun.objects.values_list("output", flat=True).get(pk=run.pk)
    return None if stored is None else stored.value


def steps(run: AgentRun) -> list[Step]:
    return list(Step.objects.filter(run=run).order_by("pk"))


def keys(run: AgentRun) -> list[str]:
    return [step.key for step in steps(run)]


def step_named(run: AgentRun, name: str) -> Step:
    step: Step = Step.objects.get(run=run, name=name)
    return step


def fenced(run: AgentRun) -> Step:
    """The attempt that the run's standing fence belongs to."""
    row = reread(run)
    assert row.pending_effect == ToolEffect.NON_IDEMPOTENT_WRITE, row.pending_effect
    assert row.termination_reason == TerminationReason.INTERRUPTED_WRITE
    assert row.pending_step is not None
    return row.pending_step


def result(step: Step) -> Any:
    return None if step.result is None else step.result.value


def arguments(step: Step) -> Any:
    return None if step.arguments is None else step.arguments.value


def called(name: str, call_id: str = "call-1", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=call_id)


def calls(*parts: ToolCallPart) -> ModelResponse:
    return ModelResponse(parts=list(parts))


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


class Scripted:
    """A model that answers by the number of answers that it sees, so that a replay gets the same.

    A turn that is an exception is raised once.
    """

    def __init__(self, *turns: ModelResponse, failures: dict[int, list[Exception]] | None = None):
        self.turns = turns
        self.failures = failures or {}
        self.asked: list[Sequence[ModelMessage]] = []
        self.model = FunctionModel(self.answer, model_name="scripted")

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if self.failures.get(turn):
            raise self.failures[turn].pop(0)
        return self.turns[turn]


def openai_model(wire: WireClient) -> OpenAIChatModel:
    """A model behind the real client library, which repeats nothing by itself."""
    provider = OpenAIProvider(base_url=f"http://{wire.address}/v1", api_key="none")
    provider.client.max_retries = 0
    provider.client.timeout = CLIENT_SECONDS
    return OpenAIChatModel("gpt-test", provider=provider)


def failure_of_last_retry(run: AgentRun) -> tuple[str, str]:
    """What the history says about the last requeue: the error, and its class."""
    event = Event.objects.filter(run=run, kind=EventKind.REQUEUED).order_by("pk").last()
    assert event is not None
    assert event.data is not None
    return event.data.value["error"], event.data.value["failure_class"]
