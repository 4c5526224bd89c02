from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db.models import F

from ...enums import RunStatus, TerminationReason
from ..arguments import positive_int
from ..command import RunsCommand
from ..finding import ADJECTIVES, listed, refuse_unknown_agents
from ..rendering import emit, listed_data, runs_text


class Command(RunsCommand):
    help = (
        "List runs without their payloads, the newest first; of those that are unresolved, waiting or "
        "due, who waits longest. Filters are combined."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for option, choices, what in (
            ("--status", RunStatus.values, "with this status; repeat it for several"),
            ("--reason", TerminationReason.values, "ended for this reason; repeat it for several"),
            ("--agent", None, "of this agent; repeat it for several"),
        ):
            parser.add_argument(option, action="append", choices=choices, help=what)
        parser.add_argument("--correlation-id", help="with this correlation id")
        parser.add_argument("--requested-by", help="asked for by this user or label")
        for name, what in ADJECTIVES.items():
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)
        parser.add_argument(
            "--limit", type=positive_int, default=50, help="at most so many runs (default 50)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unknown_agents(options["agent"] or [])
        runs = listed(
            adjectives=[name for name in ADJECTIVES if options[name]],
            status__in=options["status"],
            termination_reason__in=options["reason"],
            agent__in=options["agent"],
            correlation_id=options["correlation_id"],
            requested_by=options["requested_by"],
        )
        named = runs.annotate(pending_tool=F("pending_step__name"))
        emit(self, options["json"], listed_data(named[: options["limit"]]), runs_text)
