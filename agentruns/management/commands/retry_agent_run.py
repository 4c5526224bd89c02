from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ...api import retry
from ..command import RunsCommand
from ..each import add_arguments, do_to_each


class Command(RunsCommand):
    help = (
        "Execute dead-lettered runs again whose writes are all certain, with a new budget of retries. "
        "A run that was interrupted in a write is refused: it needs a verdict (resolve_agent_run)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)
        parser.add_argument("--reason", default="", help="why, for the run's history")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = partial(retry, by=options["by"], reason=options["reason"])
        do_to_each(self, options, verb, "queued again")
