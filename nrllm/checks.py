from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from agentruns.enums import ToolEffect

from .catalog import LATER, CatalogEntry, catalog, wrappers_in
from .effects import ATTRIBUTE, METADATA_KEY, Declaration
from .registration import DurableAgent, durable_agents


def check_tools() -> list[CheckMessage]:
    """Check what every registered agent's tools declare."""
    return [message for durable in durable_agents() for message in messages_of(durable)]


def messages_of(durable: DurableAgent) -> Iterator[CheckMessage]:
    entries = catalog(durable)
    for entry in entries:
        for rule in RULES:
            yield from rule(entry)
    yield from unknown_names(durable, entries)
    yield from output_validators(durable)
    yield from acting_wrappers(durable)


def undeclared(entry: CatalogEntry) -> Iterator[CheckMessage]:
    if entry.name != LATER and not entry.resolved.declared:
        yield Warning(
            f"The tool {entry.name!r} of the agent {entry.agent!r} declares no effect: it is fenced "
            "as a non-idempotent write.",
            hint="Say what it is: @effect(ToolEffect.NON_IDEMPOTENT_WRITE) if it acts on the world, "
            "IDEMPOTENT_WRITE if a second call with its key changes nothing, and READ_ONLY only if it "
            "changes nothing at all.",
            id="nrllm.W001",
        )


def contradicting(entry: CatalogEntry) -> Iterator[CheckMessage]:
    if entry.resolved.contradicts:
        yield Warning(
            f"The tool {entry.name!r} of the agent {entry.agent!r} is declared in ways that contradict "
            f"each other ({entry.sources}); the strictest holds: "
            f"{entry.resolved.declaration.effect.value}.",
            hint="Keep one of them.",
            id="nrllm.W002",
        )


def no_effect(entry: CatalogEntry) -> Iterator[CheckMessage]:
    for metadata in (entry.facts.metadata or {}, *entry.facts.beneath):
        said = metadata.get(METADATA_KEY)
        if said is None or isinstance(said, Declaration) or said in ToolEffect.values:
            continue
        yield Error(
            f"The tool {entry.name!r} of the agent {entry.agent!r} has the metadata effect {said!r}, "
            "which is none.",
            hint=f"Use one of: {', '.join(ToolEffect.values)}.",
            id="nrllm.E001",
        )


def timeout_on_write(entry: CatalogEntry) -> Iterator[CheckMessage]:
    if entry.timeout is not None and entry.resolved.declaration.effect != ToolEffect.READ_ONLY:
        yield Error(
            f"The tool {entry.name!r} of the agent {entry.agent!r} writes and has a timeout: when it "
            "runs out, the model is told to try again while the write goes on. Its runs will fail.",
            hint="Remove the timeout and give one to the client inside the tool.",
            id="nrllm.E002",
        )


def unknown_names(durable: DurableAgent, entries: list[CatalogEntry]) -> Iterator[CheckMessage]:
    """A declaration for a tool that does not exist protects nothing: a typing error, most likely."""
    if any(entry.name == LATER for entry in entries):
        return
    known = {entry.name for entry in entries}
    for name in sorted(durable.effects.keys() - known):
        if ":" not in name and "." not in name:
            yield Warning(
                f"The agent {durable.name!r} declares an effect for {name!r}, but has no such tool.",
                hint=f"Its tools are: {', '.join(sorted(known)) or 'none'}.",
                id="nrllm.W003",
            )


def output_validators(durable: DurableAgent) -> Iterator[CheckMessage]:
    found = [one.function for one in getattr(durable.agent, "_output_validators", ())]
    yield from _outside_every_step(durable, "output validators", "nrllm.W004", found)


def acting_wrappers(durable: DurableAgent) -> Iterator[CheckMessage]:
    """Its wrapped tools are steps; what its own code does around them is done again."""
    found = [
        type(one).call_tool
        for toolset in durable.agent.toolsets
        for one in wrappers_in(toolset)
        if not type(one).call_tool.__module__.startswith("pydantic_ai.")
    ]
    yield from _outside_every_step(durable, "toolset wrappers", "nrllm.W005", found)


def _outside_every_step(
    durable: DurableAgent, what: str, number: str, functions: list[Callable[..., Any]]
) -> Iterator[CheckMessage]:
    unmarked = {
        getattr(one, "__qualname__", type(one).__name__)
        for one in functions
        if (said := getattr(one, ATTRIBUTE, None)) is None
        or said.effect is not ToolEffect.READ_ONLY
    }
    if unmarked:
        yield Warning(
            f"The agent {durable.name!r} has {what} that run outside every step, again on each "
            f"replay: {', '.join(sorted(unmarked))}.",
            hint="Let a tool do what they do to the world. What only computes is marked "
            "@effect(ToolEffect.READ_ONLY).",
            id=number,
        )


RULES: tuple[Callable[[CatalogEntry], Iterator[CheckMessage]], ...] = (
    undeclared,
    contradicting,
    no_effect,
    timeout_on_write,
)
