from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from agentruns import registry
from agentruns.enums import ToolEffect

from .effects import Declaration, as_declaration
from .questions import refuse_answer
from .refusals import refuse_agent, refuse_tools
from .requests import read_request

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
    source: object = None
    where: str = ""


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
    max_running: int | None = None,
) -> DurableAgent:
    """Make an agent a durable run: call this in an app's `agents.py`, then `enqueue(name, prompt)`.

    `agent` is an agent, or a function that builds one, which is called for each segment. Give a
    function where a model or toolset holds an HTTP client that you made: each segment has an event
    loop of its own, and a client's connections belong to one loop.

    `deps` is called once for each segment and may be sync, async, or an `asynccontextmanager`; what
    it gives is never stored. `effects` declares tools that one does not own, by the name that the
    model sees. A run's request is a prompt, or `{"prompt": ..., "message_history": [...], ...}`.
    At most `max_running` of its runs are executed at a time, on all hosts together.

    A model request that a provider's client repeats by itself is harmless here: no model request is
    a write. The HTTP clients inside tools are the application's: one that repeats a POST by itself
    does so inside one write, where no fence can see it.

    Raises:
        AgentRefused: something of the agent would run past the fence, or it has no model; the message
            says what to do.
        ValueError: the name is taken by another agent, or an effect is none.
        TypeError: the name is no string, or the agent neither an agent nor a function that builds one.
        ImproperlyConfigured: INSTALLED_APPS lacks an app.
    """
    if apps.apps_ready:
        refuse_missing_apps()
    build = _builder(name, agent)
    declared = _declarations(name, effects or {})
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
        source=agent,
        where=_place_of_caller(),
    )
    again = name in _agents and _agents[name].source is agent
    from .catalog import catalog
    from .durability import refuse_unbindable
    from .reports import encode_result, result_schema, verifiers_of
    from .subagents import install

    refuse_tools(catalog(durable))
    refuse_unbindable(name, example, models)
    install()
    registry.add(
        registry.RegisteredAgent(
            name,
            _executor(durable),
            version,
            verifiers=verifiers_of(durable),
            encode_result=partial(encode_result, durable),
            result_schema=partial(result_schema, durable),
            refuse_request=read_request,
            refuse_answer=refuse_answer,
            scripted=partial(_scripted, durable),
            max_running=max_running,
            where=durable.where,
        ),
        again=again,
    )
    _agents[name] = durable
    return durable


def refuse_missing_apps() -> None:
    """Refuse to go on without an app that says which failures and which tools are which.

    Raises:
        ImproperlyConfigured: INSTALLED_APPS lacks it.
    """
    missing = [name for name in ("agentruns", "nrllm") if not apps.is_installed(name)]
    if missing:
        listed = " and ".join(repr(name) for name in missing)
        raise ImproperlyConfigured(f"add {listed} to INSTALLED_APPS: register_agent() needs it")


def _declarations(
    agent: str, effects: Mapping[str, ToolEffect | Declaration]
) -> dict[str, Declaration]:
    declared = {}
    for tool, said in effects.items():
        try:
            declared[tool] = as_declaration(said)
        except ValueError as error:
            raise ValueError(f"the tool {tool!r} of the agent {agent!r}: {error}") from None
    return declared


def _builder(name: str, agent: Any) -> AgentFactory:
    if not isinstance(name, str):
        raise TypeError(
            f"register_agent() takes a name, then an agent; the name is of type {type(name).__name__}"
        )
    if isinstance(agent, AbstractAgent):
        return lambda: agent
    if not callable(agent) or inspect.iscoroutinefunction(agent):
        raise TypeError(
            f"the agent {name!r} is {_described(agent)}: give an agent, or a plain function that "
            "builds one"
        )

    def build() -> AbstractAgent[Any, Any]:
        built = agent()
        if not isinstance(built, AbstractAgent):
            raise TypeError(
                f"{_described(agent)}, which is to build the agent {name!r}, returned a value of type "
                f"{type(built).__name__}, not an agent"
            )
        return built

    return build


def _described(what: object) -> str:
    name = getattr(what, "__qualname__", None)
    return f"a value of type {type(what).__name__}" if name is None else f"the function {name}()"


def _place_of_caller() -> str:
    """Where `register_agent` was called."""
    caller = sys._getframe(2)
    return f"{caller.f_globals.get('__name__')}, line {caller.f_lineno}"


def durable_agents() -> tuple[DurableAgent, ...]:
    return tuple(_agents[name] for name in sorted(_agents))


def _scripted(durable: DurableAgent, answers: Sequence[Any]) -> registry.RegisteredAgent:
    from .testing import scripted_agent

    return scripted_agent(durable, answers)


def _executor(durable: DurableAgent) -> Callable[[Segment], Awaitable[Any]]:
    async def execute(segment: Segment) -> Any:
        from .runner import run_agent  # imports what must not be imported before Django is set up

        refuse_missing_apps()  # it may have been registered before Django was set up
        return await run_agent(durable, segment)

    return execute
