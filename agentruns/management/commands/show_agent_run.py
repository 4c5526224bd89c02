from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...exceptions import RunNotFound
from ..finding import find
from ..rendering import emit, full_run_data, run_text


class Command(BaseCommand):
    help = "Show a run: its state, its fence, its steps and its history."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid")
        parser.add_argument(
            "--payloads", action="store_true", help="with request, arguments and results"
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            run = find(options["uuid"])
        except RunNotFound as error:
            raise CommandError(str(error)) from error
        payloads = options["payloads"]
        steps = (
            run.steps.order_by("pk") if payloads else run.steps.without_payloads().order_by("pk")
        )
        data = full_run_data(run, steps, run.events.order_by("pk"), payloads=payloads)
        emit(self, options["json"], data, run_text)
