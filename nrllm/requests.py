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

# They differ from one execution to the next, or describe it, and no model reads them.
NOT_SENT = frozenset({"timestamp", "run_id", "conversation_id", "metadata", "usage", "state"})

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
        return Prompt(
            _read_prompt(request.get("prompt")),
            None if history is None else ModelMessagesTypeAdapter.validate_python(history),
        )
    except ValidationError as error:
        raise RequestRefused(f"the request can't be read: {error}") from error


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
            "settings": {name: value for name, value in settings.items() if name != "timeout"},
            "parameters": _parameters(params.model_request_parameters),
        }
    )


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    return list(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {name: value for name, value in message.items() if name not in NOT_SENT}
    sent["parts"] = [
        {name: value for name, value in part.items() if name not in NOT_SENT}
        for part in message["parts"]
    ]
    return sent


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
