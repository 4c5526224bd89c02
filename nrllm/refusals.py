from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, ProcessEventStream
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.native_tools import AbstractNativeTool
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset

from agentruns.enums import ToolEffect

from .effects import ATTRIBUTE, Mapped, as_declaration
from .exceptions import AgentRefused

# What a provider runs on its side without acting on anything of ours.
NATIVE_TOOLS_THAT_READ = frozenset(
    {"web_search", "web_fetch", "x_search", "file_search", "image_generation", "code_execution",
     "advisor", "tool_search"}
)  # fmt: skip


def refuse_agent(agent: AbstractAgent[Any, Any], mapping: Mapped) -> None:
    """Refuse an agent of which something would run past the fence.

    Raises:
        AgentRefused: says what, and what to do instead.
    """
    agent.root_capability.apply(_refuse_capability)
    for toolset in agent.toolsets:
        toolset.apply(_refuse_leaf)
    for function in output_functions(agent.output_type):
        _refuse_output_function(function, mapping)
    native = agent.root_capability.get_native_tools()
    refuse_native_tools([one for one in native if isinstance(one, AbstractNativeTool)], mapping)


def refuse_write(
    name: str, effect: ToolEffect, timeout: float | None, kind: str, *, asynchronous: bool
) -> None:
    """Refuse a tool call that can't be fenced, before anything is stamped."""
    if effect is ToolEffect.READ_ONLY:
        return
    if timeout is not None:
        raise AgentRefused(
            f"the tool {name!r} writes ({effect.value}) and has a timeout of {timeout:g} s: when it "
            "runs out, the model is told to try again while the write goes on. Remove the timeout "
            "and give one to the client inside the tool"
        )
    if effect is not ToolEffect.TRANSACTIONAL_WRITE:
        return
    if kind != "function" or asynchronous:
        raise AgentRefused(
            f"the tool {name!r} is declared transactional but is not a synchronous function: its "
            "transaction can't be kept together. Make it a plain `def` function tool that writes to "
            "the same database only, or declare it an idempotent or a non-idempotent write"
        )


def refuse_native_tools(tools: Sequence[AbstractNativeTool], mapping: Mapped) -> None:
    """Refuse tools that the provider runs, and that may act: no fence can be set around them."""
    for tool in tools:
        said = mapping.get(f"native:{tool.kind}")
        reads = said is not None and as_declaration(said).effect is ToolEffect.READ_ONLY
        if tool.kind not in NATIVE_TOOLS_THAT_READ and not reads:
            raise AgentRefused(
                f"the provider's native tool {tool.kind!r} may act inside a model request, where no "
                "fence can be set. Use a toolset of your own (an MCPToolset for an MCP server), or, "
                f"if it only reads, declare effects={{'native:{tool.kind}': ToolEffect.READ_ONLY}}"
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


def output_functions(output_type: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions that would be called with an agent's output."""
    if isinstance(output_type, TextOutput):
        yield output_type.output_function
    elif isinstance(output_type, ToolOutput):
        yield from output_functions(output_type.output)
    elif isinstance(output_type, (NativeOutput, PromptedOutput)):
        yield from output_functions(output_type.outputs)
    elif isinstance(output_type, (list, tuple)):
        for one in output_type:
            yield from output_functions(one)
    elif inspect.isroutine(output_type):
        yield output_type


def _refuse_output_function(function: Callable[..., Any], mapping: Mapped) -> None:
    name = getattr(function, "__name__", "an output function")
    said = getattr(function, ATTRIBUTE, None) or mapping.get(name)
    if said is None or as_declaration(said).effect is not ToolEffect.READ_ONLY:
        raise AgentRefused(
            f"the output function {name!r} runs outside every step, again on each replay. Let a tool "
            "do what it does, or, if it only computes, mark it @effect(ToolEffect.READ_ONLY)"
        )


def _refuse_leaf(leaf: AbstractToolset[Any]) -> None:
    if isinstance(leaf, (FunctionToolset, ExternalToolset)) or _is_dynamic_or_mcp(leaf):
        return
    if type(leaf).__module__.startswith("pydantic_ai."):
        return
    raise AgentRefused(
        f"{leaf.label} is a toolset of its own kind: its calls would run unjournaled. Offer its tools "
        "through a FunctionToolset, an MCPToolset, or a DynamicToolset that returns it"
    )


def _is_dynamic_or_mcp(leaf: AbstractToolset[Any]) -> bool:
    return any(kind.__name__ in {"DynamicToolset", "MCPToolset"} for kind in type(leaf).__mro__)


def _refuse_capability(capability: AbstractCapability[Any]) -> None:
    if isinstance(capability, BaseDurabilityCapability):
        raise AgentRefused(
            f"the agent already has a durable engine ({type(capability).__name__}); an agent of a "
            "durable run has one. Build it without"
        )
    if isinstance(capability, ProcessEventStream):
        raise AgentRefused(
            "the agent's ProcessEventStream would get its events again on each replay. Give its "
            "handler to register_agent(event_stream_handler=...) instead"
        )
