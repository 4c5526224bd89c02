"""An agent one response of which asks two questions, reads, and wants an approval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from nrllm import ToolEffect, ask_person, effect, register_agent

NAME = "parked"
CALLS = (
    ToolCallPart("width", {"what": "door"}, tool_call_id="q1"),
    ToolCallPart("look", {}, tool_call_id="r1"),
    ToolCallPart("width", {"what": "wall"}, tool_call_id="q2"),
    ToolCallPart("publish", {"to": "x"}, tool_call_id="w1"),
)


def register(log: Path) -> None:
    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")

    def first_time() -> bool:
        note("asked again")
        return log.read_text().count("asked again") == 1

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=list(CALLS))
        if first_time():
            raise ModelHTTPError(503, "scripted")
        return ModelResponse(parts=[TextPart("Done.")])

    agent: Agent[None, str] = Agent(FunctionModel(answer, model_name="scripted"), name=NAME)

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def width(what: str) -> str:
        said = await ask_person(f"How wide is the {what}?", int)
        note(f"body width {what} {said}")
        return f"{said} cm"

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    def look() -> str:
        wait_for_questions()
        note("body look")
        return "seen"

    @agent.tool_plain(requires_approval=True)
    async def publish(to: str) -> str:
        note(f"body publish {to}")
        return "published"

    register_agent(NAME, agent)


def wait_for_questions() -> None:
    """Go on only when both questions and the approval have been asked: the read is still running."""
    from agentruns.models import Step
    from tests.servers.waiting import wait_until

    def asked() -> Any:
        return Step.objects.filter(run__agent=NAME).open_questions().count() == 3

    wait_until(asked, what="what the response asks")
