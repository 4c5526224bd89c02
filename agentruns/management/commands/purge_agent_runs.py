from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from ...retention import PurgeReport, purge
from ..arguments import positive_days, positive_int
from ..command import RunsCommand
from ..rendering import Data, emit
from ..usage import UsageError


class Command(RunsCommand):
    help = (
        "Delete old runs with their steps and events, in batches. Never a run that is running, nor one "
        "whose fence stands without a verdict."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_windows(parser)
        parser.add_argument(
            "--batch-size", type=positive_int, default=500, help="runs in a transaction"
        )
        parser.add_argument("--limit", type=positive_int, help="at most so many runs")
        parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")

    def handle(self, *args: Any, **options: Any) -> None:
        def show(report: PurgeReport) -> None:
            emit(self, options["json"], report.as_dict(), report_text)

        chosen = {name: options[name] for name in ("batch_size", "limit", "dry_run")}
        purge(**windows(options), **chosen, progress=show)


def add_windows(parser: CommandParser) -> None:
    for name, what in (
        ("--settled-days", "delete what settled longer ago"),
        ("--unfinished-days", "delete what was accepted longer ago and is still queued or waiting"),
    ):
        parser.add_argument(name, type=positive_days, metavar="DAYS", help=what)


def windows(options: dict[str, Any]) -> dict[str, Any]:
    """The two windows of a purge.

    Raises:
        UsageError: neither is given.
    """
    days = {kind: options[f"{kind}_days"] for kind in ("settled", "unfinished")}
    if not any(days.values()):
        raise UsageError("give --settled-days, --unfinished-days or both: what may be deleted")
    return {kind: None if n is None else timedelta(days=n) for kind, n in days.items()}


def report_text(report: Data) -> str:
    would = "would have been deleted" if report["dry_run"] else "deleted"
    counted = [name for name in report if name != "dry_run" and report[name] is not None]
    counts = ", ".join(f"{name} {report[name]}" for name in counted)
    return f"{would}: {counts}"
