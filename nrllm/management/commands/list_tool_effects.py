from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentruns import registry
from agentruns.management.command import RunsCommand
from agentruns.management.rendering import emit, line, table
from nrllm.catalog import CatalogEntry, catalog
from nrllm.effects import needs_approval
from nrllm.registration import durable_agents

PLAIN = "plain functions name the effect of each step where it is made"


class Command(RunsCommand):
    help = "List every registered agent's tools, their effects, and where each was declared."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agents", nargs="*", help="only these agents")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = set(options["agents"])
        known = {durable.name: durable for durable in durable_agents()}
        plain = sorted(set(registry.names()) - known.keys())
        refuse_unknown(wanted - known.keys(), plain)
        entries = [
            entry
            for name, durable in known.items()
            if not wanted or name in wanted
            for entry in catalog(durable)
        ]
        data = [as_data(entry) for entry in entries]
        listed = [name for name in known if not wanted or name in wanted]
        text = "\n".join(as_text(entries, listed, [] if wanted else plain))
        emit(self, options["json"], data, lambda _data: text)


def refuse_unknown(names: Collection[str], plain: Collection[str]) -> None:
    functions = sorted(name for name in names if name in plain)
    if unknown := sorted(set(names) - set(functions)):
        raise CommandError(f"no agent is registered as: {', '.join(unknown)}")
    if functions:
        raise CommandError(f"{PLAIN}: {', '.join(functions)}")


def as_text(
    entries: Collection[CatalogEntry], listed: Collection[str], plain: Collection[str]
) -> Iterator[str]:
    """A table, and every agent of which it has nothing."""
    if entries:
        yield table(map(as_row, entries))
    if bare := [name for name in listed if name not in {entry.agent for entry in entries}]:
        yield line(f"Without tools: {', '.join(bare)}.")
    if not listed:
        yield "No Pydantic AI agent is registered in this process."
    if plain:
        yield line(f"{PLAIN.capitalize()}: {', '.join(plain)}.")


def as_row(entry: CatalogEntry) -> list[str]:
    held = entry.resolved.declaration
    said = {
        "needs approval": waits(entry),
        "once per run": held.once_per_run,
        "final verify": held.verify is not None and held.verify_is_final,
        "verify": held.verify is not None and not held.verify_is_final,
    }
    more = ", ".join(what for what, holds in said.items() if holds)
    return [entry.agent, entry.name, held.effect.value, more, f"({entry.sources})"]


def waits(entry: CatalogEntry) -> bool:
    kind = "unapproved" if entry.requires_approval else "function"
    return needs_approval(kind, entry.resolved.declaration)


def as_data(entry: CatalogEntry) -> dict[str, Any]:
    held = entry.resolved.declaration
    return {
        "agent": entry.agent,
        "tool": entry.name,
        "toolset": entry.toolset,
        "effect": held.effect.value,
        "declared": entry.resolved.declared,
        "once_per_run": held.once_per_run,
        "retry_means_not_applied": held.retry_means_not_applied,
        "needs_approval": waits(entry),
        "verified": held.verify is not None,
        "sources": [
            {"source": source, "effect": said.effect.value}
            for source, said in entry.resolved.sources
        ],
    }
