from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from .enums import StepKind, Testimony
from .exceptions import PayloadError, ResultRefused, UnknownAgent
from .fields import Payload, label

if TYPE_CHECKING:
    from .models import Step
    from .segment import Segment

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class WriteInDoubt:
    """A write that a run was interrupted in: what a destination is asked about.

    `idempotency_key` is the one that the body was given; `arguments` are the journaled ones.
    """

    run: UUID
    step: str
    idempotency_key: str
    arguments: Any
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Answer:
    """What a destination said; `result` (JSON) is what the step would have returned if it landed."""

    testimony: Testimony
    result: Any = None
    note: str = ""

    @classmethod
    def landed(cls, result: Any, note: str = "") -> Answer:
        return cls(Testimony.LANDED, result, note)

    @classmethod
    def not_landed(cls, note: str = "") -> Answer:
        return cls(Testimony.NOT_LANDED, None, note)

    @classmethod
    def unknown(cls, note: str = "") -> Answer:
        return cls(Testimony.UNKNOWN, None, note)


@dataclass(frozen=True)
class Verifier:
    """How to ask a destination about a write in doubt.

    `is_final` declares that a destination which says 'not landed' does not carry out the former
    request any more, however late it arrives: from now on it carries out at most one request with
    this idempotency key, or none. The step is executed again with the same key; a body that is
    refused because of it raises `EffectNotApplied`.
    """

    ask: Callable[[WriteInDoubt], Answer]
    is_final: bool = False


@dataclass(frozen=True)
class RegisteredAgent:
    """What executes the runs of one name: a sync or async function from a segment to a JSON output.

    `verifiers` are found by the name of the step that they can be asked about. `encode_result` turns
    what a person or a destination says that a step returned (its name, its kind, the value) into what
    the journal keeps for it; it raises `PayloadError` for what the step can't have returned.
    `result_schema` is the JSON schema of what may be said of a step (its name, its kind); None where
    nobody knows, so that any JSON is taken.
    `refuse_request` raises an `AgentRunError` for a request that the agent can't begin with, before
    a run is accepted. `refuse_answer` raises `PayloadError` for an answer that does not fit its
    question. `scripted` makes, for tests, the same agent with a model that gives these answers in turn.
    `max_running` is how many runs of it may be RUNNING at a time, on all hosts together; None: any number.
    `where` says where it was registered; '' where the name of `execute` says it.
    """

    name: str
    execute: Callable[[Segment], Any]
    version: str = ""
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    encode_result: Callable[[str, StepKind, Any], Any] | None = None
    result_schema: Callable[[str, StepKind], dict[str, Any] | None] | None = None
    refuse_request: Callable[[Any], object] | None = None
    refuse_answer: Callable[[Any, Any], None] | None = None
    scripted: Callable[[Sequence[Any]], RegisteredAgent] | None = None
    max_running: int | None = None
    where: str = field(default="", compare=False)


_agents: dict[str, RegisteredAgent] = {}


def register(
    name: str,
    *,
    version: str = "",
    verifiers: Mapping[str, Verifier] | None = None,
    max_running: int | None = None,
) -> Callable[[F], F]:
    """Register a plain function as a durable run.

    Of its runs, at most `max_running` are executed at a time, on all hosts together.

    Example::

        @register("refund")
        def refund(segment):
            return segment.step("charge", lambda key: charge(key), arguments=segment.request)

    Raises:
        ValueError: another function has this name.
        TypeError: the name is missing, or what is decorated can't be called.
    """
    if not isinstance(name, str):
        raise TypeError("register() takes the agent's name first: @register('refund')")

    def decorate(function: F) -> F:
        if not callable(function):
            raise TypeError(f"{name!r} is to name a function, not {type(function).__name__}")
        add(
            RegisteredAgent(name, function, version, verifiers or {}, max_running=max_running),
        )
        return function

    return decorate


def add(agent: RegisteredAgent, *, again: bool = False) -> None:
    """Register an agent; the same one again (an autoreload) replaces itself.

    `again` says that it is the same, where its function does not show it.

    Raises:
        ValueError: another one has this name.
    """
    label(agent.name, "the agent's name")
    known = _agents.get(agent.name)
    if known is not None and not again and not _same(known.execute, agent.execute):
        where = known.where or _place(known.execute)
        raise ValueError(f"an agent named {agent.name!r} is registered already, in {where}")
    _agents[agent.name] = agent


def _place(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}: {name}"


def _same(known: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether they are one function, or two loads of one module-level function."""
    name = getattr(known, "__qualname__", "<locals>")
    return known is other or (
        "<locals>" not in name
        and name == getattr(other, "__qualname__", None)
        and known.__module__ == other.__module__
    )


def get(name: str) -> RegisteredAgent:
    """Find an agent by its name.

    Raises:
        UnknownAgent: none is registered in this process.
    """
    try:
        return _agents[name]
    except KeyError:
        raise UnknownAgent(name, names()) from None


def agents() -> tuple[RegisteredAgent, ...]:
    return tuple(_agents.values())


def served() -> dict[str, str]:
    """The agents of this process with their versions: which runs it may execute."""
    return {agent.name: agent.version for agent in _agents.values()}


def limits() -> dict[str, int]:
    """The agents of this process that may have only so many runs at a time, and how many."""
    return {
        agent.name: agent.max_running for agent in _agents.values() if agent.max_running is not None
    }


def accepting(name: str, request: Payload) -> RegisteredAgent:
    """Find an agent that is to be asked for a run, and let it judge the request.

    Raises:
        UnknownAgent: none is registered in this process.
        AgentRunError: the agent can't begin with this request; which error is the agent's matter.
    """
    found = get(name)
    if found.refuse_request is not None:
        found.refuse_request(request.value)
    return found


def verifier(agent: str, step: str) -> Verifier | None:
    """Who can be asked about this step of this agent, if anybody."""
    known = _agents.get(agent)
    return known.verifiers.get(step) if known else None


def journaled_result(agent: str, step: Step, value: Any) -> Payload:
    """Encode the result that somebody else says a step had, as if its body had returned it.

    Raises:
        UnknownAgent: no agent of this name is registered in this process.
        ResultRefused: the step can't have returned this.
    """
    encode = get(agent).encode_result
    try:
        return Payload.of(
            value if encode is None else encode(step.name, StepKind(step.kind), value)
        )
    except PayloadError as error:
        raise ResultRefused(str(error)) from error


def result_schema(agent: str, step: Step) -> dict[str, Any] | None:
    """The JSON schema that a step's result is held to; None where nobody knows it.

    Raises:
        UnknownAgent: no agent of this name is registered in this process.
    """
    describe = get(agent).result_schema
    return None if describe is None else describe(step.name, StepKind(step.kind))


def refuse_answer(agent: str, question: Payload | None, answer: Any) -> None:
    """Let the agent judge a person's answer; one that is not known here judges when it goes on.

    Raises:
        PayloadError: the answer does not fit the question.
    """
    known = _agents.get(agent)
    if known is not None and known.refuse_answer is not None:
        known.refuse_answer(None if question is None else question.value, answer)


def names() -> tuple[str, ...]:
    return tuple(sorted(_agents))
