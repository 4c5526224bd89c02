from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nrllm.catalog import CatalogEntry, catalog
from nrllm.registration import durable_agents


class Command(BaseCommand):
    help = "List every registered agent's tools, their effects, and where each was declared."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agents", nargs="*", help="only these agents")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = set(options["agents"])
        known = {durable.name: durable for durable in durable_agents()}
        if unknown := wanted - known.keys():
            raise CommandError(f"no agent is registered as: {', '.join(sorted(unknown))}")
        entries = [
            entry
            for name, durable in known.items()
            if not wanted or name in wanted
            for entry in catalog(durable)
        ]
        if options["json"]:
            self.stdout.write(json.dumps([as_json(entry) for entry in entries], indent=2))
            return
        for entry in entries:
            effect = entry.resolved.declaration.effect.value
            approval = ", needs approval" if needs_approval(entry) else ""
            line = f"{entry.agent}  {entry.name}  {effect}{approval}  ({entry.sources})"
            self.stdout.write(line)


def needs_approval(entry: CatalogEntry) -> bool:
    return entry.requires_approval or entry.resolved.declaration.needs_approval


def as_json(entry: CatalogEntry) -> dict[str, Any]:
    held = entry.resolved.declaration
    return {
        "agent": entry.agent,
        "tool": entry.name,
        "toolset": entry.toolset,
        "effect": held.effect.value,
        "declared": entry.resolved.declared,
        "once_per_run": held.once_per_run,
        "retry_means_not_applied": held.retry_means_not_applied,
        "needs_approval": needs_approval(entry),
        "verified": held.verify is not None,
        "sources": [
            {"source": source, "effect": said.effect.value}
            for source, said in entry.resolved.sources
        ],
    }
