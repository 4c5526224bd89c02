from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from .enums import StepKind, Testimony
from .exceptions import UnknownAgent
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

    `is_final` declares that a destination which says 'not landed' will also refuse this idempotency
    key from now on, so that the former worker can't act any more.
    """

    ask: Callable[[WriteInDoubt], Answer]
    is_final: bool = False


@dataclass(frozen=True)
class RegisteredAgent:
    """What executes the runs of one name: a sync or async function from a segment to a JSON output.

    `verifiers` are found by the name of the step that they can be asked about. `encode_result` turns
    what a person or a destination says that a step returned (its name, its kind, the value) into what
    the journal keeps for it; it raises `PayloadError` for what the step can't have returned.
    `refuse_answer` raises `PayloadError` for an answer that does not fit its question.
    """

    name: str
    execute: Callable[[Segment], Any]
    version: str = ""
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    encode_result: Callable[[str, StepKind, Any], Any] | None = None
    refuse_answer: Callable[[Any, Any], None] | None = None


_agents: dict[str, RegisteredAgent] = {}


def register(
    name: str, *, version: str = "", verifiers: Mapping[str, Verifier] | None = None
) -> Callable[[F], F]:
    """Register a plain function as a durable run.

        @register("refund")
        def refund(segment):
            return segment.step("charge", lambda key: charge(key), arguments=segment.request)

    Raises:
        ValueError: another function has this name.
    """

    def decorate(function: F) -> F:
        add(RegisteredAgent(name, function, version, verifiers or {}))
        return function

    return decorate


def add(agent: RegisteredAgent) -> None:
    """Register an agent; the same one again (an autoreload) replaces itself.

    Raises:
        ValueError: another one has this name.
    """
    label(agent.name, "the agent's name")
    known = _agents.get(agent.name)
    if known is not None and not _same(known.execute, agent.execute):
        raise ValueError(f"an agent named {agent.name!r} is registered already: {known.execute!r}")
    _agents[agent.name] = agent


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


def verifier(agent: str, step: str) -> Verifier | None:
    """Who can be asked about this step of this agent, if anybody."""
    known = _agents.get(agent)
    return known.verifiers.get(step) if known else None


def journaled_result(agent: str, step: Step, value: Any) -> Payload:
    """Encode the result that somebody else says a step had, as if its body had returned it.

    Raises:
        UnknownAgent: no agent of this name is registered in this process.
        PayloadError: the step can't have returned this.
    """
    encode = get(agent).encode_result
    return Payload.of(value if encode is None else encode(step.name, StepKind(step.kind), value))


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
