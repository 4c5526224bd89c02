from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..command import RunsCommand
from ..finding import find
from ..rendering import emit, full_run_data, run_text


class Command(RunsCommand):
    help = "Show a run: its state, its fence, its steps and its history."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid", help="the run")
        parser.add_argument(
            "--payloads", action="store_true", help="with request, arguments and results"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        run = find(options["uuid"])
        payloads = options["payloads"]
        steps = (
            run.steps.order_by("pk") if payloads else run.steps.without_payloads().order_by("pk")
        )
        data = full_run_data(run, steps, run.events.order_by("pk"), payloads=payloads)
        emit(self, options["json"], data, run_text)
