from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...api import enqueue
from ...exceptions import AgentRunError
from ..arguments import json_value, not_negative_seconds
from ..rendering import emit


class Command(BaseCommand):
    help = "Enqueue a run. Prints its uuid."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent", help="the name under which the agent is registered")
        parser.add_argument(
            "--request", metavar="JSON", help="the request: JSON, @file, or - for standard input"
        )
        parser.add_argument("--idempotency-key", help="the same key gives the same run")
        parser.add_argument("--correlation-id", default="")
        parser.add_argument("--requested-by", default="")
        parser.add_argument("--delay-seconds", type=not_negative_seconds, default=0.0)
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("idempotency_key", "correlation_id", "requested_by", "delay_seconds")
        request = json_value(options["request"])
        try:
            accepted = enqueue(options["agent"], request, **{name: options[name] for name in names})
        except AgentRunError as error:
            raise CommandError(str(error)) from error
        data = {"uuid": accepted.uuid, "created": accepted.created}
        emit(self, options["json"], data, lambda data: str(data["uuid"]))
