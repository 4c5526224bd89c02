"""Run the crash matrix, print it, and fail if a cell is missing or a promise is broken.

    python -m tests.crash.matrix [--quick] [--json] [--lanes N] [--only TEXT] [--postgres]

On the server that DATABASE_URL names, in databases of its own; without it, on SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import django

from script.suite import postgres


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the crash matrix.")
    parser.add_argument("--quick", action="store_true", help="the part that script/test runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lanes", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="the cells whose name contains this")
    parser.add_argument(
        "--postgres", action="store_true", help="start a server, unless DATABASE_URL names one"
    )
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.test")
    if not options.postgres:
        return run(options)
    with postgres() as url:
        os.environ["DATABASE_URL"] = url
        return run(options)


def run(options: argparse.Namespace) -> int:
    django.setup()
    from .run import report_of_this_database

    started = time.monotonic()
    report = report_of_this_database(
        quick=options.quick, only=options.only, lanes=options.lanes, progress=say
    )
    report.seconds = time.monotonic() - started
    print(json.dumps(report.as_dict()) if options.json else report.as_text(), flush=True)
    return 1 if report.broken else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
