from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ...enums import RunStatus, TerminationReason
from ..arguments import positive_int
from ..finding import ADJECTIVES, listed
from ..rendering import emit, run_data, runs_text


class Command(BaseCommand):
    help = "List runs, the newest first, without their payloads. Filters are combined."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--status", action="append", choices=RunStatus.values)
        parser.add_argument("--reason", action="append", choices=TerminationReason.values)
        parser.add_argument("--agent", action="append")
        parser.add_argument("--correlation-id")
        parser.add_argument("--requested-by")
        for name, what in ADJECTIVES.items():
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)
        parser.add_argument("--limit", type=positive_int, default=50)
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        runs = listed(
            adjectives=[name for name in ADJECTIVES if options[name]],
            status__in=options["status"],
            termination_reason__in=options["reason"],
            agent__in=options["agent"],
            correlation_id=options["correlation_id"],
            requested_by=options["requested_by"],
        )
        data = [run_data(run) for run in runs[: options["limit"]]]
        emit(self, options["json"], data, runs_text)
