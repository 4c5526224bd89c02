from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from agentruns import registry
from agentruns.enums import ToolEffect

from .effects import Declaration, as_declaration
from .questions import refuse_answer
from .refusals import refuse_agent

if TYPE_CHECKING:
    from agentruns.segment import Segment


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a `deps` factory is told about the run that it builds dependencies for."""

    uuid: UUID
    agent: str
    agent_version: str
    requested_by: str
    correlation_id: str
    request: Any


DepsFactory = Callable[[RunInfo], Any | Awaitable[Any]]
AgentFactory = Callable[[], AbstractAgent[Any, Any]]


@dataclass(frozen=True)
class DurableAgent:
    """An agent as it was registered."""

    name: str
    agent: AbstractAgent[Any, Any]
    build: AgentFactory
    version: str = ""
    deps: DepsFactory | None = None
    effects: Mapping[str, ToolEffect | Declaration] = field(default_factory=dict)
    trusted_mcp_servers: frozenset[str] = frozenset()
    usage_limits: UsageLimits | None = None
    models: Mapping[str, Model] | None = None
    event_stream_handler: EventStreamHandler[Any] | None = None


_agents: dict[str, DurableAgent] = {}


def register_agent(
    name: str,
    agent: AbstractAgent[Any, Any] | AgentFactory,
    *,
    version: str = "",
    deps: DepsFactory | None = None,
    effects: Mapping[str, ToolEffect | Declaration] | None = None,
    trusted_mcp_servers: Collection[str] = (),
    usage_limits: UsageLimits | None = None,
    models: Mapping[str, Model] | None = None,
    event_stream_handler: EventStreamHandler[Any] | None = None,
) -> DurableAgent:
    """Make an agent a durable run: call this in an app's `agents.py`, then `enqueue(name, prompt)`.

    `agent` is an agent, or a function that builds one, which is called for each segment. Give a
    function where a model or toolset holds an HTTP client that you made: each segment has an event
    loop of its own, and a client's connections belong to one loop.

    `deps` is called once for each segment and may be sync, async, or an `asynccontextmanager`; what
    it gives is never stored. `effects` declares tools that one does not own, by the name that the
    model sees. A run's request is a prompt, or `{"prompt": ..., "message_history": [...], ...}`.

    A model request that a provider's client repeats by itself is harmless here: no model request is
    a write. The HTTP clients inside tools are the application's: one that repeats a POST by itself
    does so inside one write, where no fence can see it.

    Raises:
        AgentRefused: something of the agent would run past the fence; the message says what to do.
        ValueError: the name is taken by another agent, or an effect is none.
    """
    declared = {tool: as_declaration(said) for tool, said in (effects or {}).items()}
    build = _builder(agent)
    example = build()
    refuse_agent(example, declared)
    durable = DurableAgent(
        name,
        example,
        build,
        version=version,
        deps=deps,
        effects=declared,
        trusted_mcp_servers=frozenset(trusted_mcp_servers),
        usage_limits=usage_limits,
        models=models,
        event_stream_handler=event_stream_handler,
    )
    if name in _agents and agent not in (_agents[name].agent, _agents[name].build):
        raise ValueError(f"an agent named {name!r} is registered already")
    from .reports import encode_result, verifiers_of
    from .subagents import install

    install()
    registry.add(
        registry.RegisteredAgent(
            name,
            _executor(durable),
            version,
            verifiers=verifiers_of(durable),
            encode_result=partial(encode_result, durable),
            refuse_answer=refuse_answer,
        )
    )
    _agents[name] = durable
    return durable


def _builder(agent: AbstractAgent[Any, Any] | AgentFactory) -> AgentFactory:
    if isinstance(agent, AbstractAgent):
        return lambda: agent
    return agent


def durable_agents() -> tuple[DurableAgent, ...]:
    return tuple(_agents[name] for name in sorted(_agents))


def _executor(durable: DurableAgent) -> Callable[[Segment], Awaitable[Any]]:
    async def execute(segment: Segment) -> Any:
        from .runner import run_agent  # imports what must not be imported before Django is set up

        return await run_agent(durable, segment)

    return execute
