from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...tasks import PURGE
from .. import scheduling
from ..command import RunsCommand
from .purge_agent_runs import add_windows, windows

NAME = "agentruns: purge old runs"


class Command(RunsCommand):
    help = (
        "Have the django-q2 cluster delete old runs once a day. Running it again changes nothing, or "
        "the windows."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_windows(parser)
        parser.add_argument("--remove", action="store_true", help="remove the schedule")

    def handle(self, *args: Any, **options: Any) -> None:
        days = {} if options["remove"] else windows(options)
        given = [
            f"{kind}_days={options[f'{kind}_days']!r}" for kind in days if options[f"{kind}_days"]
        ]
        wanted = {
            "func": PURGE,
            "schedule_type": "D",
            "repeats": -1,
            "kwargs": ", ".join([*given, "q_options={'save': False}"]),
        }
        scheduling.run(self, NAME, wanted, "day", options)
