from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .exceptions import UnknownAgent
from .fields import label

if TYPE_CHECKING:
    from .segment import Segment

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RegisteredAgent:
    """What executes the runs of one name: a sync or async function from a segment to a JSON output."""

    name: str
    execute: Callable[[Segment], Any]
    version: str = ""


_agents: dict[str, RegisteredAgent] = {}


def register(name: str, *, version: str = "") -> Callable[[F], F]:
    """Register a plain function as a durable run.

        @register("refund")
        def refund(segment):
            return segment.step("charge", lambda key: charge(key), arguments=segment.request)

    Raises:
        ValueError: another function has this name.
    """

    def decorate(function: F) -> F:
        add(RegisteredAgent(name, function, version))
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


def names() -> tuple[str, ...]:
    return tuple(sorted(_agents))
