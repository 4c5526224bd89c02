from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.durable_exec import ModelRequestParams
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, UserContent
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from .exceptions import RequestRefused
from .keys import digest

# Of the settings, what a model's answer does not depend on, and another execution may have anew.
OF_THE_TRANSPORT = frozenset({"timeout", "extra_headers"})
# Of a message, what a model reads. The rest describes an execution, and differs in the next.
SENT = ("kind", "instructions")
NOT_SENT = frozenset({"timestamp", "metadata"})

_prompt = TypeAdapter(list[UserContent])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A run's request, decoded."""

    prompt: str | list[UserContent] | None
    message_history: list[ModelMessage] | None = None


def read_request(request: Any) -> Prompt:
    """Decode a run's request: a prompt, or `{"prompt": ..., "message_history": [...]}`.

    A prompt is a string, or a list of Pydantic AI's user content. Other keys are the
    application's, for its `deps` factory.

    Raises:
        RequestRefused: it is neither, or a part of it can't be read.
    """
    if isinstance(request, str):
        return Prompt(request)
    if not isinstance(request, dict) or not {"prompt", "message_history"} & request.keys():
        raise RequestRefused('the request must be a string or an object with "prompt"')
    try:
        history = request.get("message_history")
        _refuse_calls_without_id(history)
        return Prompt(
            _read_prompt(request.get("prompt")),
            None if history is None else ModelMessagesTypeAdapter.validate_python(history),
        )
    except ValidationError as error:
        raise RequestRefused(f"the request can't be read: {error}") from error


def _refuse_calls_without_id(history: Any) -> None:
    """Refuse what would get another id in each segment, and so be another call."""
    messages = history if isinstance(history, list) else []
    parts = [part for message in messages if isinstance(message, dict) for part in _parts(message)]
    if any(part.get("part_kind") == "tool-call" and not part.get("tool_call_id") for part in parts):
        raise RequestRefused("the request's message history has a tool call without tool_call_id")


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = message.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _read_prompt(prompt: Any) -> str | list[UserContent] | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    return _prompt.validate_python(prompt)


def request_digest(params: ModelRequestParams) -> str:
    """Digest what the model would be sent; what differs between two executions is left out."""
    settings = params.model_settings or {}
    return digest(
        {
            "model": params.model_id,
            "messages": [_sent(message) for message in _dumped(params.messages)],
            "settings": {
                name: value for name, value in settings.items() if name not in OF_THE_TRANSPORT
            },
            "parameters": _parameters(params.model_request_parameters),
        }
    )


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    return list(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {name: message.get(name) for name in SENT}
    return {**sent, "parts": [_sent_part(part) for part in message["parts"]]}


def _sent_part(part: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is empty, so that a field that a release adds strands no run in flight."""
    return {
        name: value for name, value in part.items() if name not in NOT_SENT and value is not None
    }


def _parameters(parameters: ModelRequestParameters) -> dict[str, Any]:
    return {
        "tools": [_tool(tool) for tool in parameters.function_tools],
        "output_tools": [_tool(tool) for tool in parameters.output_tools],
        "native_tools": [tool.kind for tool in parameters.native_tools],
        "output_mode": parameters.output_mode,
        "output_object": parameters.output_object,
        "allow_text_output": parameters.allow_text_output,
    }


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters_json_schema,
        "strict": tool.strict,
    }
