from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...api import enqueue
from ...exceptions import AgentRunError, UnknownAgent
from ...fields import Payload
from ...registry import accepting
from ..arguments import JSON_HELP, json_value, not_negative_seconds
from ..command import RunsCommand
from ..rendering import emit
from ..usage import UsageError


class Command(RunsCommand):
    help = "Enqueue a run. Prints its uuid."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent", help="the name under which the agent is registered")
        parser.add_argument("--request", metavar="JSON", help=f"the request: {JSON_HELP}")
        parser.add_argument("--idempotency-key", help="the same key gives the same run")
        parser.add_argument("--correlation-id", default="", help="to find the run by")
        parser.add_argument("--requested-by", default="", help="who asks for the run")
        parser.add_argument(
            "--delay-seconds",
            type=not_negative_seconds,
            default=0.0,
            help="begin so many seconds from now at the earliest",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("idempotency_key", "correlation_id", "requested_by", "delay_seconds")
        request = json_value(options["request"])
        if options["request"] is None:
            refuse_without_request(options["agent"])
        accepted = enqueue(options["agent"], request, **{name: options[name] for name in names})
        data = {"uuid": accepted.uuid, "created": accepted.created}
        emit(self, options["json"], data, lambda data: str(data["uuid"]))


def refuse_without_request(agent: str) -> None:
    """Say which option is missing where the agent can't begin without a request."""
    try:
        accepting(agent, Payload.of(None))
    except UnknownAgent:
        raise
    except AgentRunError as refusal:
        raise UsageError(f"this agent needs --request: {refusal}") from None
