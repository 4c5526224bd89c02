from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import conf
from ...holding import hold_unfinished
from ..arguments import positive_int
from ..command import RunsCommand
from ..rendering import Data, emit, line
from ..usage import UsageError, refuse_without


class Command(RunsCommand):
    help = (
        "Dead-letter every run that has not ended, after a restore or in a copy of a database: what "
        "the runs have done since it was written is not known in it. Stop the workers and the reaper "
        "first. A person retries or resolves each run later."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--by", default="", help="who asks for it, for the runs' history")
        parser.add_argument("--reason", default="", help="why, for the runs' history")
        parser.add_argument("--yes", action="store_true", help="do it; it needs --by and --reason")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done")
        parser.add_argument(
            "--batch-size", type=positive_int, default=500, help="runs in a transaction"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not (options["yes"] or options["dry_run"]):
            raise UsageError(
                f"this dead-letters every unfinished run in the database {conf.DATABASE!r}: look with "
                "--dry-run, then repeat with --yes"
            )
        if not options["dry_run"]:
            refuse_without(options, ("by", "reason"), what="--yes")
        chosen = {name: options[name] for name in ("by", "reason", "batch_size", "dry_run")}
        report = hold_unfinished(**chosen).as_dict()
        emit(self, options["json"], report, report_text)
        if report["errors"]:
            raise CommandError(f"runs that could not be held: {len(report['errors'])}")


def report_text(report: Data) -> str:
    would = "would be held" if report["dry_run"] else "held"
    lines = [f"{would}: {report['held']}"]
    lines += [f"  {reason}: {count}" for reason, count in sorted(report["reasons"].items())]
    lines += [f"{error['uuid']} {line(error['error'])}" for error in report["errors"]]
    return "\n".join(lines)
