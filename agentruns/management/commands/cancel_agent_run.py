from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...api import cancel
from ...enums import RunStatus
from ...exceptions import AgentRunError
from ..rendering import Data, emit


class Command(BaseCommand):
    help = "Cancel a run: at once where no write is in flight, else after that write is recorded."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid")
        parser.add_argument("--by", default="", help="who cancels it, for the run's history")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            status = cancel(options["uuid"], by=options["by"])
        except AgentRunError as error:
            raise CommandError(str(error)) from error
        data = {"uuid": options["uuid"], "status": status}
        emit(self, options["json"], data, outcome_text)


def outcome_text(data: Data) -> str:
    if data["status"] == RunStatus.CANCELLED:
        return f"{data['uuid']} is cancelled"
    return (
        f"{data['uuid']} is inside a write: it is cancelled when that is recorded; "
        "if it dies there, it is dead-lettered as an interrupted write"
    )
