"""What a model endpoint answers: a script, chosen by the conversation that a request carries.

    {
      "conversations": {
        "order 1001": [
          {"tool_calls": [{"name": "look_up_order", "arguments": {"order": 1001}}]},
          {"text": "It was sent yesterday.", "usage": {"input": 40, "output": 7}}
        ]
      },
      "faults": [
        {"marker": "order 1001", "turn": 1, "times": 1, "status": 429, "retry_after": 2},
        {"request": 5, "cut": true}
      ]
    }

A conversation is found by its marker, a piece of its first user message; the turn is the number of
answers in it so far. So a request that is sent again, by another process or after a crash, gets the
same answer: nothing is counted but the faults. A fault with `request` meets the n-th request since
the script was set; others meet the first `times` requests (1; -1 is all) of their marker and turn,
either of which may be left out. A fault is one of `status` (with `retry_after`, `message`), `cut`
(the connection ends in the middle of the answer), `delay` (seconds before the answer) and `hold`
(the answer waits until it is released).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One answer of the model, in no provider's words yet."""

    text: str | None
    tool_calls: tuple[ToolCall, ...]
    input_tokens: int
    output_tokens: int
    finish_reason: str | None


@dataclass
class Fault:
    request: int | None = None
    marker: str | None = None
    turn: int | None = None
    times: int = 1
    status: int | None = None
    retry_after: int | None = None
    message: str = "scripted fault"
    cut: bool = False
    delay: float = 0
    hold: bool = False

    def meets(self, number: int, marker: str | None, turn: int) -> bool:
        """Return whether this request is to fail, and count it if it is."""
        if self.request is not None:
            return self.request == number
        fits = self.marker in (None, marker) and self.turn in (None, turn)
        if not fits or self.times == 0:
            return False
        self.times -= 1
        return True


@dataclass
class Script:
    conversations: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Script:
        return cls(
            conversations=value.get("conversations", {}),
            faults=[Fault(**fault) for fault in value.get("faults", [])],
        )

    def marker_of(self, first_user_message: str) -> str | None:
        """Return the longest marker in the message, so that 'order 1' does not catch 'order 10'."""
        found = [marker for marker in self.conversations if marker in first_user_message]
        return max(found, key=len, default=None)

    def answer(self, marker: str, turn: int) -> Answer | None:
        turns = self.conversations[marker]
        return read_turn(turns[turn], marker, turn) if turn < len(turns) else None

    def fault(self, number: int, marker: str | None, turn: int) -> Fault | None:
        return next((fault for fault in self.faults if fault.meets(number, marker, turn)), None)


def read_turn(turn: dict[str, Any], marker: str, number: int) -> Answer:
    usage = turn.get("usage", {})
    calls = enumerate(turn.get("tool_calls", []))
    return Answer(
        text=turn.get("text"),
        tool_calls=tuple(read_call(call, marker, number, index) for index, call in calls),
        input_tokens=usage.get("input", 20),
        output_tokens=usage.get("output", 10),
        finish_reason=turn.get("finish_reason"),
    )


def read_call(call: dict[str, Any], marker: str, turn: int, index: int) -> ToolCall:
    arguments = call.get("arguments", {})
    digest = hashlib.sha256(f"{marker}/{turn}/{index}".encode()).hexdigest()[:16]
    return ToolCall(
        id=call.get("id", f"call_{digest}"),
        name=call["name"],
        # A string is passed on as it is, so that malformed arguments can be written in a script.
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
    )
