from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.capabilities import AbstractCapability, SetToolMetadata
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    ExternalToolset,
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


def catalog(durable: DurableAgent) -> list[CatalogEntry]:
    """List an agent's tools as far as they are known without running it."""
    metadata = _metadata_of_capabilities(durable)
    found = [one for toolset in durable.agent.toolsets for one in _walk(toolset)]
    return [_entry(durable, _with_metadata(one, metadata)) for one in found]


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
    elif not isinstance(toolset, ExternalToolset):
        yield _Found(ToolFacts(LATER), toolset.id or toolset.label)


def _functions(toolset: FunctionToolset[Any]) -> Iterator[_Found]:
    for name, tool in toolset.tools.items():
        facts = ToolFacts(name, metadata=tool.metadata, function=tool.function)
        timeout = tool.timeout if tool.timeout is not None else toolset.timeout
        yield _Found(facts, toolset.id or toolset.label, timeout, tool.requires_approval)


def _through(wrapper: WrapperToolset[Any], facts: ToolFacts) -> ToolFacts:
    if isinstance(wrapper, SetMetadataToolset):
        return replace(facts, metadata={**(facts.metadata or {}), **wrapper.metadata})
    if facts.name == LATER:
        return facts
    if isinstance(wrapper, PrefixedToolset):
        return replace(facts, name=f"{wrapper.prefix}_{facts.name}")
    if isinstance(wrapper, RenamedToolset):
        renamed = {old: new for new, old in wrapper.name_map.items()}
        return replace(facts, name=renamed.get(facts.name, facts.name))
    return facts


def _metadata_of_capabilities(durable: DurableAgent) -> list[SetToolMetadata[Any]]:
    setters: list[SetToolMetadata[Any]] = []

    def visit(capability: AbstractCapability[Any]) -> None:
        if isinstance(capability, SetToolMetadata):
            setters.append(capability)

    durable.agent.root_capability.apply(visit)
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
            facts = replace(facts, metadata={**(facts.metadata or {}), **setter.metadata})
    return replace(found, facts=facts)
