from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...conf import conf
from ...reencryption import ReencryptionReport, reencrypt
from ..arguments import positive_int
from ..command import RunsCommand
from ..rendering import Data, emit, line
from ..usage import UsageError


class Command(RunsCommand):
    help = (
        "Encrypt every payload anew with the first of ENCRYPTION_KEYS, those that are not encrypted "
        "too. May run beside workers, be stopped, and be run again. When it ends with 0, the other "
        "keys can be taken out."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--batch-size", type=positive_int, default=100, help="rows in a transaction"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would be written")

    def handle(self, *args: Any, **options: Any) -> None:
        if not conf.ENCRYPTION_KEYS:
            raise UsageError(
                "ENCRYPTION_KEYS is empty: nothing is encrypted, and nothing can be. To end encryption, "
                "put '' before the former keys"
            )
        self.shows_progress = options["verbosity"] > 0 and not options["json"]
        report = reencrypt(
            batch_size=options["batch_size"],
            dry_run=options["dry_run"],
            progress=self.show_progress,
        )
        data = report.as_dict() | {"dry_run": options["dry_run"]}
        emit(self, options["json"], data, report_text)
        if report.held or report.unreadable:
            raise CommandError(
                f"not done: {report.held} rows were held by others (run this again), "
                f"{len(report.unreadable)} values can't be read"
            )

    def show_progress(self, table: str, pk: int, report: ReencryptionReport) -> None:
        if self.shows_progress:
            self.stderr.write(f"{table} up to {pk}: {report.rows} rows, {report.written} written")
            self.stderr.flush()


def report_text(report: Data) -> str:
    would = "would be written" if report["dry_run"] else "written"
    lines = [f"{report['rows']} rows, {would}: {report['written']}, held: {report['held']}"]
    lines += [
        f"{value['table']} {value['pk']}, {value['column']}: {line(value['why'])}"
        for value in report["unreadable"]
    ]
    return "\n".join(lines)
