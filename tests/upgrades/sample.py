"""Two agents whose journals are stored with each version: `python -m tests.upgrades`.

They do everything that a journal can hold, and stop before their last step: the first attempt at it
fails, and the run is queued again. Today's code has to replay the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from agentruns.enums import ToolEffect
from agentruns.exceptions import EffectNotApplied
from agentruns.registry import register
from agentruns.segment import Segment
from nrllm import Declaration, ask_person, register_agent
from tests.project.models import LedgerEntry

AGENT, FUNCTION = "sample_agent", "sample_function"
READ, WRITE = ToolEffect.READ_ONLY, ToolEffect.NON_IDEMPOTENT_WRITE


def call(name: str, number: int, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=f"c{number}")


TURNS: Sequence[Sequence[ToolCallPart | TextPart]] = (
    [call("look", 1, order=7), call("look", 2, order=8)],
    [call("look", 3, order=13)],
    [call("send", 4, to="ann@example.org"), call("charge", 5, cents=1, note="\x00 \u00e9")],
    [call("book", 6, cents=2), call("refuse", 7, to="bob")],
    [call("measure", 8, what="door"), call("approved", 9, to="cy")],
    [call("pay", 10, to="dan"), call("pay", 11, to="dan"), call("offered", 12)],
    [TextPart("done")],
)


class Sample:
    """Registers both agents; `done` are the bodies that were executed, the model's among them."""

    def __init__(self, *, failing: bool, instructions: str = "Be brief.") -> None:
        self.failing = failing
        self.done: list[str] = []
        self.agent: Agent[None, str] = Agent(
            FunctionModel(self.answer, model_name="sample"), name=AGENT, instructions=instructions
        )
        for declared, tool in (
            (Declaration(READ), self.look),
            (Declaration(WRITE), self.send),
            (Declaration(ToolEffect.IDEMPOTENT_WRITE), self.charge),
            (Declaration(ToolEffect.TRANSACTIONAL_WRITE), self.book),
            (Declaration(WRITE), self.refuse),
            (Declaration(READ), self.measure),
            (Declaration(WRITE, needs_approval=True), self.approved),
            (Declaration(WRITE, once_per_run=True), self.pay),
        ):
            self.agent.tool_plain(metadata={"effect": declared})(tool)

        @self.agent.toolset(id="shelf")
        def shelf(context: Any) -> FunctionToolset[Any]:
            toolset: FunctionToolset[Any] = FunctionToolset(id="inner")
            toolset.tool_plain(metadata={"effect": WRITE})(self.offered)
            return toolset

        register_agent(AGENT, self.agent)
        register(FUNCTION)(self.function)

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        self.done.append(f"model {turn}")
        if self.failing and turn == len(TURNS) - 1:
            raise ModelHTTPError(503, "sample")
        return ModelResponse(parts=list(TURNS[turn]))

    def body(self, name: str) -> str:
        self.done.append(name)
        return f"{name} done"

    async def look(self, order: int) -> str:
        if order == 13:
            self.body("look 13")
            raise ModelRetry("there is no order 13")
        return self.body(f"look {order}")

    def send(self, to: str) -> str:
        return self.body(f"send {to}")

    async def charge(self, cents: int, note: str) -> dict[str, Any]:
        return {"said": self.body("charge"), "note": note, "nothing": None, "cents": cents}

    def book(self, cents: int) -> str:
        LedgerEntry.objects.create(run=ZERO, idempotency_key="sample", amount=cents)
        return self.body("book")

    def refuse(self, to: str) -> str:
        self.body("refuse")
        raise EffectNotApplied("the address is none")

    async def measure(self, what: str) -> str:
        width = await ask_person(f"How wide is the {what}?", int)
        return self.body(f"measure {width}")

    def approved(self, to: str) -> str:
        return self.body("approved")

    def pay(self, to: str) -> str:
        return self.body("pay")

    def offered(self) -> str:
        return self.body("offered")

    def function(self, segment: Segment) -> Any:
        said = [
            segment.step(
                str(kind.value),
                self.step(kind),
                effect=kind,
                arguments={"n": n, "odd": "\x00\ud800"},
            )
            for n, kind in enumerate(ToolEffect)
        ]
        said.append(segment.step("again", self.step(READ), effect=READ))
        said.append(segment.step("again", self.step(READ), effect=READ))
        said.append(segment.wait_for_input("how many", {"question": "how many?"}))
        said.append(segment.step("last", self.last, effect=READ, key="the last one"))
        return said

    def step(self, kind: ToolEffect) -> Any:
        return lambda key: self.body(str(kind.value))

    def last(self, key: str) -> str:
        self.body("last")
        if self.failing:
            raise ConnectionError("not now")
        return "last"


ZERO = "00000000-0000-0000-0000-000000000000"
