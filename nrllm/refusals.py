from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import (
    AbstractCapability,
    ProcessEventStream,
    RequestInput,
    WrapperCapability,
)
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.native_tools import AbstractNativeTool
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset

from agentruns.enums import ToolEffect

from .effects import ATTRIBUTE, Declaration, Mapped, as_declaration
from .exceptions import AgentRefused
from .questions import asks_person, cannot_ask
from .tools import is_async

if TYPE_CHECKING:
    from .catalog import CatalogEntry

# What a provider runs on its side without acting on anything of ours.
NATIVE_TOOLS_THAT_READ = frozenset(
    {"web_search", "web_fetch", "x_search", "file_search", "image_generation", "code_execution",
     "advisor", "tool_search"}
)  # fmt: skip


NO_EXTERNAL_TOOLS = (
    "{}: an external tool gets its result from outside the run, which no step can record. Make it a "
    "tool that asks a person (ask_person), or one that calls what has the result"
)


def refuse_agent(agent: AbstractAgent[Any, Any], mapping: Mapped) -> None:
    """Refuse an agent of which something would run past the fence.

    Raises:
        AgentRefused: says what, and what to do instead.
    """
    _refuse_without_model(agent)
    agent.root_capability.apply(_refuse_capability)
    for toolset in agent.toolsets:
        toolset.apply(_refuse_leaf)
    for part in output_parts(agent.output_type):
        refuse_output(part, mapping)
    native = agent.root_capability.get_native_tools()
    refuse_native_tools([one for one in native if isinstance(one, AbstractNativeTool)], mapping)
    for settings in _settings_of(agent):
        refuse_settings(settings, mapping)


def _settings_of(agent: AbstractAgent[Any, Any]) -> Iterator[Mapping[str, Any]]:
    """The model settings that are known before a run: some are made by a function in it."""
    given = (getattr(agent, "model_settings", None), getattr(agent.model, "settings", None))
    for settings in given:
        if isinstance(settings, Mapping):
            yield settings


def _refuse_without_model(agent: AbstractAgent[Any, Any]) -> None:
    # Which model a capability gives is known in a run only; this is what Pydantic AI asks, too.
    by_capability = getattr(agent.root_capability, "_can_supply_model", True)
    if agent.model is None and not by_capability:
        raise AgentRefused(
            "the agent has no model, and a run can't be given one: build it with one, such as "
            "Agent('openai:gpt-5.2', defer_model_check=True)"
        )


def refuse_write(
    name: str,
    effect: ToolEffect,
    timeout: float | None,
    kind: str,
    function: Callable[..., Any] | None,
) -> None:
    """Refuse a write that can't be fenced: when its agent is registered, or before the stamp."""
    if effect is ToolEffect.READ_ONLY:
        return
    if function is not None and asks_person(function):
        raise AgentRefused(cannot_ask(name, effect))
    if timeout is not None:
        raise AgentRefused(
            f"the tool {name!r} writes ({effect.value}) and has a timeout of {timeout:g} s: when it "
            "runs out, the model is told to try again while the write goes on. Remove the timeout "
            "and give one to the client inside the tool"
        )
    if effect is not ToolEffect.TRANSACTIONAL_WRITE:
        return
    if kind != "function" or function is None or is_async(function):
        raise AgentRefused(
            f"the tool {name!r} is declared transactional but is not a synchronous function: its "
            "transaction can't be kept together. Make it a plain `def` function tool that writes to "
            "the same database only, or declare it an idempotent or a non-idempotent write"
        )


def refuse_tools(entries: Iterable[CatalogEntry]) -> None:
    """Refuse those of an agent's tools that can be seen before a run and can't be fenced.

    Raises:
        AgentRefused: names the tool and what to do instead.
    """
    for entry in entries:
        if entry.facts.function is not None:
            effect = entry.resolved.declaration.effect
            refuse_write(entry.name, effect, entry.timeout, "function", entry.facts.function)


def refuse_listed(
    definition: ToolDefinition, held: Declaration, verifiable: Collection[str]
) -> None:
    """Refuse a tool that a run lists and that could not be seen when its agent was registered."""
    if definition.kind == "external":
        raise AgentRefused(NO_EXTERNAL_TOOLS.format(definition.name))
    if held.verify is not None and definition.name not in verifiable:
        raise AgentRefused(
            f"the tool {definition.name!r} declares `verify`, but was not known when its agent was "
            "registered, so that a worker which has not run it could not ask. Declare it in "
            f"register_agent(effects={{{definition.name!r}: Declaration(..., verify=...)}})"
        )


def refuse_inside(
    holder: str,
    name: str,
    held: Declaration,
    kind: str,
    timeout: float | None,
) -> None:
    """Refuse what a tool of an agent inside a tool asks for, and what only a step can keep."""
    writes = held.effect is not ToolEffect.READ_ONLY
    asked = {
        "needs an approval": held.needs_approval or kind == "unapproved",
        "is once_per_run": writes and held.once_per_run,
        "declares `verify`": writes and held.verify is not None,
        "writes and has a timeout": writes and timeout is not None,
    }
    if unkept := [what for what, does in asked.items() if does]:
        raise AgentRefused(
            f"{holder} runs an agent whose tool {name!r} {' and '.join(unkept)}: inside a tool that "
            "can't be kept, since its calls are no steps. Make it a tool of the outer agent, or make "
            "the inner agent a run of its own (enqueue)"
        )


def refuse_native_tools(tools: Sequence[AbstractNativeTool], mapping: Mapped) -> None:
    """Refuse tools that the provider runs, and that may act: no fence can be set around them."""
    for tool in tools:
        _refuse_native_tool(tool.kind, mapping)


def refuse_settings(settings: Mapping[str, Any] | None, mapping: Mapped) -> None:
    """Refuse such tools where a model's settings bring them, past Pydantic AI's own list."""
    given = settings or {}
    body = given.get("extra_body")
    body = body if isinstance(body, Mapping) else {}
    lists = [one for name, one in given.items() if name.endswith("_native_tools")]
    for tool in chain.from_iterable([*lists, body.get("tools") or ()]):
        kind = tool.get("type") if isinstance(tool, Mapping) else type(tool).__name__
        if kind != "function":
            _refuse_native_tool(str(kind), mapping)
    if body.get("mcp_servers"):
        _refuse_native_tool("mcp_server", mapping)


def _refuse_native_tool(kind: str, mapping: Mapped) -> None:
    said = mapping.get(f"native:{kind}")
    reads = said is not None and as_declaration(said).effect is ToolEffect.READ_ONLY
    # A provider's name of a version of it, such as web_search_2025_08_26 or web_search_preview.
    known = any(kind == name or kind.startswith(f"{name}_") for name in NATIVE_TOOLS_THAT_READ)
    if not known and not reads:
        raise AgentRefused(
            f"the provider's native tool {kind!r} may act inside a model request, where no "
            "fence can be set. Use a toolset of your own (an MCPToolset for an MCP server), or, "
            f"if it only reads, declare effects={{'native:{kind}': ToolEffect.READ_ONLY}}"
        )


def refuse_unwrapped(toolset: AbstractToolset[Any], journaled: Callable[[object], bool]) -> None:
    """Refuse a leaf toolset that reached a run without its calls becoming steps."""

    def visit(leaf: AbstractToolset[Any]) -> None:
        if not journaled(leaf):
            _refuse_leaf(leaf)
            if isinstance(leaf, FunctionToolset) or _is_dynamic_or_mcp(leaf):
                raise AgentRefused(
                    f"{leaf.label} was added to the agent while the run was going on, so its calls "
                    "are no steps. Give it to the agent when the agent is built"
                )

    toolset.apply(visit)


def timeouts_of(agent: AbstractAgent[Any, Any]) -> dict[str, float]:
    """The timeouts that toolsets set on all their tools, by toolset id."""
    found: dict[str, float] = {}

    def visit(leaf: AbstractToolset[Any]) -> None:
        if isinstance(leaf, FunctionToolset) and leaf.timeout is not None and leaf.id is not None:
            found[leaf.id] = leaf.timeout

    for toolset in agent.toolsets:
        toolset.apply(visit)
    return found


def output_parts(output_type: Any) -> Iterator[Any]:
    """Yield the types that an agent's output may have, and the functions that are called with it."""
    if isinstance(output_type, TextOutput):
        yield output_type.output_function
    elif isinstance(output_type, ToolOutput):
        yield from output_parts(output_type.output)
    elif isinstance(output_type, (NativeOutput, PromptedOutput)):
        yield from output_parts(output_type.outputs)
    elif isinstance(output_type, (list, tuple)):
        for one in output_type:
            yield from output_parts(one)
    elif get_origin(output_type) in (Union, UnionType):
        yield from get_args(output_type)
    else:
        yield output_type


def refuse_output(part: Any, mapping: Mapped) -> None:
    """Refuse an output function, which runs outside every step, unless it only computes."""
    if part is DeferredToolRequests:
        raise AgentRefused(
            "DeferredToolRequests is no output of a durable run, which waits for people itself. Take it "
            "out of the output type: requires_approval and ask_person() park the run and let it go on"
        )
    if not _is_function(part):
        return
    name = getattr(part, "__name__", type(part).__name__)
    said = getattr(part, ATTRIBUTE, None) or mapping.get(name)
    if said is None or as_declaration(said).effect is not ToolEffect.READ_ONLY:
        raise AgentRefused(
            f"the output function {name!r} runs outside every step, again on each replay. Let a tool "
            "do what it does, or, if it only computes, mark it @effect(ToolEffect.READ_ONLY)"
        )


def _is_function(part: Any) -> bool:
    """Whether an output is made by calling something: a function, or an object that acts as one."""
    of_types = type(part).__module__ in {"types", "typing", "typing_extensions"}
    return callable(part) and not isinstance(part, type) and not of_types


def _refuse_leaf(leaf: AbstractToolset[Any]) -> None:
    if isinstance(leaf, ExternalToolset):
        raise AgentRefused(NO_EXTERNAL_TOOLS.format(leaf.label))
    if isinstance(leaf, FunctionToolset) or _is_dynamic_or_mcp(leaf):
        return
    if type(leaf).__module__.startswith("pydantic_ai."):
        return
    raise AgentRefused(
        f"{leaf.label} is a toolset of its own kind: its calls would run unjournaled. Offer its tools "
        "through a FunctionToolset, an MCPToolset, or a DynamicToolset that returns it"
    )


def _is_dynamic_or_mcp(leaf: AbstractToolset[Any]) -> bool:
    return any(kind.__name__ in {"DynamicToolset", "MCPToolset"} for kind in type(leaf).__mro__)


def refuse_resolved(root: AbstractCapability[Any] | None) -> None:
    """Refuse capabilities that only a run makes: what a function of the agent gave back.

    Raises:
        AgentRefused: as for a capability that is known when the agent is registered.
    """

    def visit(capability: AbstractCapability[Any]) -> None:
        if isinstance(capability, WrapperCapability):
            capability.wrapped.apply(visit)
        elif not isinstance(capability, BaseDurabilityCapability):
            _refuse_capability(capability)

    if root is not None:
        root.apply(visit)


def _refuse_capability(capability: AbstractCapability[Any]) -> None:
    if isinstance(capability, BaseDurabilityCapability):
        raise AgentRefused(
            f"the agent already has a durable engine ({type(capability).__name__}); an agent of a "
            "durable run has one. Build it without"
        )
    if isinstance(capability, RequestInput):
        raise AgentRefused(
            "the agent's RequestInput waits in a way of its own, which no other process could go on "
            "from. Leave it out: requires_approval and ask_person() park the run, and "
            "agentruns.api.decide() and submit_input() let it go on"
        )
    if isinstance(capability, ProcessEventStream):
        raise AgentRefused(
            "the agent's ProcessEventStream would get its events again on each replay. Give its "
            "handler to register_agent(event_stream_handler=...) instead"
        )
