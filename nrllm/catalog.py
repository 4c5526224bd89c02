from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, SetToolMetadata
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    FunctionToolset,
    PrefixedToolset,
    RenamedToolset,
    SetMetadataToolset,
    WrapperToolset,
)

from .effects import Resolved, ToolFacts, effect_of
from .registration import DurableAgent

LATER = "*"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One tool of a registered agent. Its name is `*` where only a run learns the names."""

    agent: str
    toolset: str
    facts: ToolFacts
    resolved: Resolved
    timeout: float | None = None
    requires_approval: bool = False

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def sources(self) -> str:
        if self.name == LATER:
            return "known when the server or the factory is asked"
        said = [f"{source}: {one.effect.value}" for source, one in self.resolved.sources]
        return ", ".join(said) or "nothing declared"


@dataclass(frozen=True, slots=True)
class _Found:
    facts: ToolFacts
    toolset: str
    timeout: float | None = None
    requires_approval: bool = False
    schema: Any = None


def catalog(durable: DurableAgent) -> list[CatalogEntry]:
    """List an agent's tools as far as they are known without running it."""
    return [_entry(durable, found) for found in _found_in(durable.agent)]


@dataclass(frozen=True, slots=True)
class Seen:
    """What only the agent's own toolsets show of a function that a run lists as a tool."""

    metadata: tuple[Mapping[str, Any], ...] = ()
    timeout: float | None = None


def seen_of(agent: AbstractAgent[Any, Any]) -> dict[int, Seen]:
    """What the agent's toolsets show of their tools, by the `id` of the function's schema."""
    seen: dict[int, Seen] = {}
    for found in _found_in(agent):
        before = seen.get(id(found.schema), Seen())
        layers = (*found.facts.beneath, found.facts.metadata or {})
        timeout = before.timeout if before.timeout is not None else found.timeout
        seen[id(found.schema)] = Seen((*before.metadata, *layers), timeout)
    seen.pop(id(None), None)
    return seen


def _found_in(agent: AbstractAgent[Any, Any]) -> list[_Found]:
    setters = _metadata_of_capabilities(agent)
    found = [one for toolset in agent.toolsets for one in _walk(toolset)]
    return [_with_metadata(one, setters) for one in found]


def _entry(durable: DurableAgent, found: _Found) -> CatalogEntry:
    trusted = found.toolset in durable.trusted_mcp_servers
    facts = replace(found.facts, annotations_trusted=trusted)
    resolved = effect_of(facts, durable.effects)
    return CatalogEntry(
        durable.name, found.toolset, facts, resolved, found.timeout, found.requires_approval
    )


def _walk(toolset: AbstractToolset[Any]) -> Iterator[_Found]:
    """Yield the tools of a tree of toolsets, under the names that the model sees."""
    if isinstance(toolset, FunctionToolset):
        yield from _functions(toolset)
    elif isinstance(toolset, CombinedToolset):
        for part in toolset.toolsets:
            yield from _walk(part)
    elif isinstance(toolset, WrapperToolset):
        for found in _walk(toolset.wrapped):
            yield replace(found, facts=_through(toolset, found.facts))
    else:
        yield _Found(ToolFacts(LATER), toolset.id or toolset.label)


def wrappers_in(toolset: AbstractToolset[Any]) -> Iterator[AbstractToolset[Any]]:
    """Yield what stands around the leaves of a tree of toolsets."""
    if isinstance(toolset, CombinedToolset):
        yield toolset
        for part in toolset.toolsets:
            yield from wrappers_in(part)
    elif isinstance(toolset, WrapperToolset):
        yield toolset
        yield from wrappers_in(toolset.wrapped)


def _functions(toolset: FunctionToolset[Any]) -> Iterator[_Found]:
    for name, tool in toolset.tools.items():
        facts = ToolFacts(name, metadata=tool.metadata, function=tool.function)
        timeout = tool.timeout if tool.timeout is not None else toolset.timeout
        yield _Found(
            facts,
            toolset.id or toolset.label,
            timeout,
            tool.requires_approval,
            tool.function_schema,
        )


def _through(wrapper: WrapperToolset[Any], facts: ToolFacts) -> ToolFacts:
    if isinstance(wrapper, SetMetadataToolset):
        return _overlaid(facts, wrapper.metadata)
    if facts.name == LATER:
        return facts
    if isinstance(wrapper, PrefixedToolset):
        return replace(facts, name=f"{wrapper.prefix}_{facts.name}")
    if isinstance(wrapper, RenamedToolset):
        renamed = {old: new for new, old in wrapper.name_map.items()}
        return replace(facts, name=renamed.get(facts.name, facts.name))
    return facts


def _overlaid(facts: ToolFacts, metadata: Mapping[str, Any]) -> ToolFacts:
    before = facts.metadata or {}
    return replace(facts, metadata={**before, **metadata}, beneath=(*facts.beneath, before))


def _metadata_of_capabilities(agent: AbstractAgent[Any, Any]) -> list[SetToolMetadata[Any]]:
    setters: list[SetToolMetadata[Any]] = []

    def visit(capability: AbstractCapability[Any]) -> None:
        if isinstance(capability, SetToolMetadata):
            setters.append(capability)

    agent.root_capability.apply(visit)
    return setters


def _with_metadata(found: _Found, setters: list[SetToolMetadata[Any]]) -> _Found:
    """Apply `SetToolMetadata` where its selector can be judged without a run."""
    facts = found.facts
    for setter in reversed(setters):
        selector = setter.tools
        named = not isinstance(selector, str) and isinstance(
            selector, (list, tuple, set, frozenset)
        )
        if selector == "all" or (named and facts.name in selector):
            facts = _overlaid(facts, setter.metadata)
    return replace(found, facts=facts)
