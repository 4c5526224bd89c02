"""A local model endpoint that speaks OpenAI's chat completions, whole and streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.servers.script import Answer
from tests.servers.wire import Conversation, ModelEndpoint, pieces, run


def text_of(content: Any) -> str:
    """Return a message's text: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])


def tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.tool_calls
    ]


def usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }


def finish_reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


class OpenAIEndpoint(ModelEndpoint):
    def conversation(self, body: dict[str, Any]) -> Conversation:
        messages = body.get("messages", [])
        asked = [text_of(message["content"]) for message in messages if message["role"] == "user"]
        return Conversation(
            first_user_message=asked[0] if asked else "",
            answers=sum(message["role"] == "assistant" for message in messages),
            messages=len(messages),
        )

    def message(self, answer: Answer, model: str) -> dict[str, Any]:
        said: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.tool_calls:
            said["tool_calls"] = tool_calls(answer)
        choice = {"index": 0, "message": said, "finish_reason": finish_reason(answer)}
        return {
            **self.envelope("chat.completion", model),
            "choices": [{**choice, "logprobs": None}],
            "usage": usage(answer),
        }

    def envelope(self, kind: str, model: str) -> dict[str, Any]:
        return {
            "id": "chatcmpl-local",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def events(self, answer: Answer, body: dict[str, Any]) -> Iterator[str]:
        envelope = self.envelope("chat.completion.chunk", body.get("model", ""))
        for delta in deltas(answer):
            yield event({**envelope, "choices": [choice_chunk(delta, None)]})
        yield event({**envelope, "choices": [choice_chunk({}, finish_reason(answer))]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield event({**envelope, "choices": [], "usage": usage(answer)})
        yield "data: [DONE]\n\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_error" if status == 429 else "server_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(answer.text or ""):
        yield {"content": piece}
    for index, call in enumerate(answer.tool_calls):
        function = {"name": call.name, "arguments": ""}
        opening = {"index": index, "id": call.id, "type": "function", "function": function}
        yield {"tool_calls": [opening]}
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def choice_chunk(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


if __name__ == "__main__":
    run(OpenAIEndpoint, "Answer OpenAI chat completions from a script.")
