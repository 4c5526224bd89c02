from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error

from ...reaper import ReapReport, sweep
from ..arguments import positive_int, positive_seconds
from ..command import RunsCommand, said_by_database
from ..rendering import emit, line, report_text
from ..repeating import repeat


class Command(RunsCommand):
    help = (
        "Requeue or dead-letter RUNNING runs whose lease has expired, and wake QUEUED runs that "
        "are due and that nobody took. With --every, it stays and sweeps again and again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--limit", type=positive_int, help="at most so many runs a sweep")
        parser.add_argument(
            "--batch-size", type=positive_int, default=1000, help="rows locked at a time"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would be done")
        parser.add_argument(
            "--every", type=positive_seconds, metavar="SECONDS", help="sweep until SIGTERM"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.as_json, self.quiet = options["json"], options["every"] is not None
        chosen = {name: options[name] for name in ("limit", "batch_size", "dry_run")}
        if options["every"] is not None:
            repeat(
                lambda: self.show(sweep(**chosen)),
                self.show_failure,
                every_seconds=options["every"],
            )
            return
        report = sweep(**chosen)
        self.show(report)
        if report.failures:
            raise CommandError(report.failures)

    def show(self, report: ReapReport) -> None:
        did_something = report.runs or report.woken or report.asked or report.not_sent
        if self.as_json or not self.quiet or did_something:
            emit(self, self.as_json, report.as_dict(), report_text)
        if self.quiet and report.failures:
            self.stderr.write(report.failures)

    def show_failure(self, error: Error) -> None:
        said = {"failed": f"{type(error).__name__}: {said_by_database(error)}"}
        if self.as_json:
            emit(self, True, said, str)
        self.stderr.write(f"the sweep failed: {line(said['failed'])}")
