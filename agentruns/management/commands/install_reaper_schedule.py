from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...tasks import REAP
from .. import scheduling
from ..arguments import positive_int
from ..command import RunsCommand

NAME = "agentruns: reap stale runs"


class Command(RunsCommand):
    help = (
        "Have the django-q2 cluster reap stale runs every minute. Running it again changes nothing. "
        "A reaper that does not depend on the workers that it watches is better: "
        "reap_stale_agent_runs --every 30 as a process of its own, or from cron."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--minutes", type=positive_int, default=1, help="how often (default: every minute)"
        )
        parser.add_argument("--remove", action="store_true", help="remove the schedule")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = {
            "func": REAP,
            "schedule_type": "I",
            "minutes": options["minutes"],
            "repeats": -1,
            # What it did is in the runs' histories; only a failure is kept.
            "kwargs": "q_options={'save': False}",
        }
        every = f"{options['minutes']} min"
        scheduling.run(self, NAME, wanted, every, options)
