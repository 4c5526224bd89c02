"""A model that answers from a script, for the tests of an application's agents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

from agentruns import registry
from agentruns.exceptions import AgentRunError

if TYPE_CHECKING:
    from agentruns.segment import Segment

    from .registration import DurableAgent

Answer = str | Mapping[str, Any] | ModelResponse


class ScriptEnded(AgentRunError):
    """The model was asked once more than its script has answers."""


def scripted_model(answers: Sequence[Answer], *, name: str = "scripted-model") -> FunctionModel:
    """A model that gives these answers in turn, streamed or whole.

    An answer is a text; or `{"text": ...}`; or `{"tool_calls": [{"name": ..., "arguments": {...}}]}`;
    or a `ModelResponse`. Which one is due is told by how many the conversation already has, so that a
    run that goes on in another process is answered as it would have been in the first.

    Raises:
        ScriptEnded: when it is asked, where the script has no further answer.
    """
    responses = [response_of(answer, turn) for turn, answer in enumerate(answers)]

    def due(messages: Sequence[ModelMessage]) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn >= len(responses):
            raise ScriptEnded(f"the script has {len(responses)} answers; one more was asked for")
        return responses[turn]

    async def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return due(messages)

    async def streamed(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        for index, part in enumerate(due(messages).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {
                    index: DeltaToolCall(
                        part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id
                    )
                }

    return FunctionModel(whole, stream_function=streamed, model_name=name)


def response_of(answer: Answer, turn: int) -> ModelResponse:
    """Make a response of an answer of a script; its calls have the same ids each time."""
    if isinstance(answer, ModelResponse):
        return answer
    if isinstance(answer, str):
        return ModelResponse(parts=[TextPart(answer)])
    unknown = set(answer) - {"text", "tool_calls"}
    if unknown:
        raise ValueError(f"an answer has a text or tool_calls, not {sorted(unknown)}")
    calls = [
        ToolCallPart(
            call["name"],
            json.dumps(call.get("arguments", {})),
            tool_call_id=call.get("id", f"call-{turn}-{number}"),
        )
        for number, call in enumerate(answer.get("tool_calls", ()))
    ]
    text = [TextPart(answer["text"])] if "text" in answer else []
    return ModelResponse(parts=[*text, *calls])


def scripted_agent(durable: DurableAgent, answers: Sequence[Answer]) -> registry.RegisteredAgent:
    """The same agent, its own model replaced by a scripted one; agents inside tools keep theirs."""
    model = scripted_model(answers)
    # Pydantic AI takes no instance over a step's boundary that it was not told of.
    models = {**(durable.models or {}), "scripted": model}

    async def execute(segment: Segment) -> Any:
        from .runner import run_agent

        agent = durable.build()
        with agent.override(model=model):
            return await run_agent(replace(durable, build=lambda: agent, models=models), segment)

    return replace(registry.get(durable.name), execute=execute)
