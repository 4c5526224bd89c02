from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ...api import fail
from ..command import RunsCommand
from ..each import add_arguments, do_to_each


class Command(RunsCommand):
    help = "Give up queued runs, such as those that no worker serves. They can be retried later."

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)
        parser.add_argument("--reason", required=True, help="why, for the run's history")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = partial(fail, by=options["by"], reason=options["reason"])
        do_to_each(self, options, verb, "failed")
