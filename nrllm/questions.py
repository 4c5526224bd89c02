"""Questions that a tool asks a person."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any

from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.toolsets import FunctionToolset

from agentruns.enums import ToolEffect
from agentruns.exceptions import PayloadError

from .current import current_step
from .effects import effect
from .exceptions import AgentRefused
from .keys import jsonable


class AnswerNeeded(BaseException):
    """Leaves a tool's body for its question; the body starts again when there is an answer.

    Not an `Exception`, so that no handler turns it into a result.
    """

    def __init__(self, question: dict[str, Any]) -> None:
        super().__init__(question)
        self.question = question


class Answers:
    """The answers that a body was given so far, in the order of its questions."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self._asked = 0

    def next(self, question: dict[str, Any]) -> Any:
        self._asked += 1
        if self._asked > len(self.given):
            raise AnswerNeeded(question)
        return self.given[self._asked - 1]

    def restart(self) -> None:
        self._asked = 0


_answers: ContextVar[Answers | None] = ContextVar("nrllm_answers", default=None)


@contextmanager
def answering(answers: Answers) -> Generator[None]:
    answers.restart()
    token = _answers.set(answers)
    try:
        yield
    finally:
        _answers.reset(token)


async def ask_person(question: str, answer: Any = str) -> Any:
    """Ask a person, in a tool that only reads; give back the answer as `answer`, a type.

    `answer` may also be a JSON schema (a dict); the answer is then JSON. The run is parked until
    somebody answers (`agentruns.api.submit_input`), and the tool's body then starts again from its
    beginning, with the answer: what it does before it asks is done twice. Questions of calls that
    the model made side by side are asked side by side.

    Raises:
        LookupError: no tool of a durable run is running here.
        AgentRefused: the tool writes, so that its body can't start again.
    """
    step, answers = current_step(), _answers.get()
    if step is None or answers is None:
        raise LookupError("ask_person() can be called only in a tool of a durable run")
    if step.effect is not ToolEffect.READ_ONLY:
        raise AgentRefused(cannot_ask(step.name, step.effect))
    kind = None if isinstance(answer, dict) else TypeAdapter(answer)
    schema = answer if kind is None else kind.json_schema()
    asked: dict[str, Any] = {"question": question, "schema": jsonable(schema)}
    while True:
        said = answers.next(asked)
        try:
            return said if kind is None else kind.validate_python(said)
        except ValidationError as error:
            # The type asks for more than its schema can say: ask again, and say why.
            asked = {**asked, "refused": said, "why": str(error)}


def cannot_ask(name: str, effect: ToolEffect) -> str:
    return (
        f"the tool {name!r} asks a person and is {effect.value}: its body starts again with the "
        "answer. Ask in a tool that reads, or have the write approved"
    )


def asks_person(function: Callable[..., Any]) -> bool:
    """Whether a function's own code calls `ask_person`; what it calls in turn is not seen."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    named = getattr(function, "__globals__", {}).get("ask_person", ask_person) is ask_person
    return code is not None and named and "ask_person" in _names(code)


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*map(_names, inner))


def refuse_answer(question: Any, answer: Any) -> None:
    """Refuse an answer that does not fit the schema that is stored with its question.

    Raises:
        PayloadError: says what does not fit, and where.
    """
    schema = question.get("schema") if isinstance(question, dict) else None
    if schema is None:
        return
    try:
        wrong = next(iter(Draft202012Validator(schema).iter_errors(answer)), None)
    except SchemaError as error:
        raise PayloadError(f"the question's schema is none: {error.message}") from error
    if wrong is not None:
        raise PayloadError(f"the answer does not fit at {wrong.json_path}: {wrong.message}")


def ask_human(answer: Any = str, *, name: str = "ask_human") -> FunctionToolset[Any]:
    """A toolset with one tool by which the model asks a person; it is told the answer."""
    toolset: FunctionToolset[Any] = FunctionToolset(id=name)

    @effect(ToolEffect.READ_ONLY)
    async def ask(question: str) -> Any:
        """Ask a person a question, and wait for the answer."""
        return await ask_person(question, answer)

    toolset.add_function(ask, name=name)
    return toolset
