from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from ...api import move
from ..command import RunsCommand
from ..each import add_arguments, do_to_each


class Command(RunsCommand):
    help = (
        "Have runs that are not running executed by workers that serve another version of their "
        "agent. The journal stays as it is: code that does not fit it fails the run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)
        parser.add_argument(
            "--to", required=True, metavar="VERSION", help="the version; '' is none"
        )
        parser.add_argument("--reason", default="", help="why, for the run's history")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = partial(move, version=options["to"], by=options["by"], reason=options["reason"])
        do_to_each(self, options, verb, "moved")
