"""A local model endpoint that speaks Anthropic's messages, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.openai_wire import text_of
from tests.servers.script import Answer, ToolCall
from tests.servers.wire import Conversation, ModelEndpoint, pieces, run

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def arguments_of(call: ToolCall) -> Any:
    """Return the arguments as an object; this wire format has no malformed ones unless streamed."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return {"malformed": call.arguments}


def stop_reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_use" if answer.tool_calls else "end_turn")


class AnthropicEndpoint(ModelEndpoint):
    def conversation(self, body: dict[str, Any]) -> Conversation:
        messages = body.get("messages", [])
        asked = [text_of(message["content"]) for message in messages if message["role"] == "user"]
        return Conversation(
            first_user_message=asked[0] if asked else "",
            answers=sum(message["role"] == "assistant" for message in messages),
            messages=len(messages),
        )

    def message(self, answer: Answer, model: str) -> dict[str, Any]:
        return {
            **self.envelope(model),
            "content": list(blocks(answer)),
            "stop_reason": stop_reason(answer),
            "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
        }

    def envelope(self, model: str) -> dict[str, Any]:
        return {
            "id": "msg_local",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        start = self.envelope(body.get("model", ""))
        usage = {"input_tokens": answer.input_tokens, "output_tokens": 1}
        yield event("message_start", message={**start, "usage": usage})
        for index, block in enumerate(blocks(answer)):
            yield event("content_block_start", index=index, content_block=emptied(block))
            for delta in deltas(block):
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        yield event(
            "message_delta",
            delta={"stop_reason": stop_reason(answer), "stop_sequence": None},
            usage={"output_tokens": answer.output_tokens},
        )
        yield event("message_stop")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = ERROR_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def blocks(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.text is not None:
        yield {"type": "text", "text": answer.text}
    for call in answer.tool_calls:
        yield {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": arguments_of(call),
        }


def emptied(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}


def deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        for piece in pieces(block["text"]):
            yield {"type": "text_delta", "text": piece}
    else:
        for piece in pieces(json.dumps(block["input"])):
            yield {"type": "input_json_delta", "partial_json": piece}


def event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


if __name__ == "__main__":
    run(AnthropicEndpoint, "Answer Anthropic messages from a script.")
