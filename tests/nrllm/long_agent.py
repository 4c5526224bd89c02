"""An agent of ten steps: parallel reads, two writes, one of them approved, a streamed answer."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, PartDeltaEvent, PartStartEvent
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from nrllm import Answer, ToolEffect, WriteInDoubt, effect, event_place, register_agent

NAME = "long"
ANSWER = ("Both ", "were ", "sent.")
TURNS = (
    (("read", "r1", '{"n": 1}'), ("read", "r2", '{"n": 2}'), ("send", "w1", '{"to": "x"}')),
    (("read", "r3", '{"n": 3}'), ("publish", "w2", '{"to": "y"}')),
)


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < len(TURNS):
        yield {
            index: DeltaToolCall(name=name, json_args=arguments, tool_call_id=call_id)
            for index, (name, call_id, arguments) in enumerate(TURNS[turn])
        }
        return
    for piece in ANSWER:
        yield piece


def register(log: Path, die_in: str = "", die_after_event_of: str = "") -> None:
    agent: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name=NAME)

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def read(n: int) -> str:
        note(f"body read {n}")
        return f"read {n}"

    def act(to: str) -> str:
        note(f"body send {to}")
        if die_in and die_in.endswith({"x": "w1", "y": "w2"}[to]):
            os.kill(os.getpid(), signal.SIGKILL)
        return f"sent {to}"

    def landed(doubt: WriteInDoubt) -> Answer:
        note(f"verify {doubt.step} {doubt.idempotency_key}")
        if die_in == "verify":
            os.kill(os.getpid(), signal.SIGKILL)
        return Answer.landed("sent x")

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, verify=landed)
    def send(to: str) -> str:
        return act(to)

    @agent.tool_plain(requires_approval=True)
    def publish(to: str) -> str:
        return act(to)

    async def handler(ctx: Any, events: Any) -> None:
        async for event in events:
            place = event_place()
            note(f"event {place.step} {place.epoch} {place.index} {describe(event)}")
            if (place.step, place.index) == (die_after_event_of, 1):
                os.kill(os.getpid(), signal.SIGKILL)

    register_agent(NAME, agent, event_stream_handler=handler)


def describe(event: Any) -> str:
    if isinstance(event, (PartStartEvent, PartDeltaEvent)):
        part = event.part if isinstance(event, PartStartEvent) else event.delta
        said = getattr(part, "content", None) or getattr(part, "content_delta", None)
        return f"text {said}" if isinstance(said, str) else event.event_kind
    return f"{event.event_kind} {getattr(event, 'tool_call_id', '')}"
