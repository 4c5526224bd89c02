from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...api import cancel
from ...enums import RunStatus
from ..command import RunsCommand
from ..finding import find
from ..rendering import Data, emit


class Command(RunsCommand):
    help = "Cancel a run: at once where no write is in flight, else after that write is recorded."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid", help="the run")
        parser.add_argument("--by", default="", help="who cancels it, for the run's history")

    def handle(self, *args: Any, **options: Any) -> None:
        run = find(options["uuid"])
        status = cancel(run.uuid, by=options["by"])
        data = {"uuid": run.uuid, "status": status}
        emit(self, options["json"], data, outcome_text)


def outcome_text(data: Data) -> str:
    if data["status"] == RunStatus.CANCELLED:
        return f"{data['uuid']} is cancelled"
    return (
        f"{data['uuid']} is inside a write: it is cancelled when that is recorded; "
        "if it dies there, it is dead-lettered as an interrupted write"
    )
