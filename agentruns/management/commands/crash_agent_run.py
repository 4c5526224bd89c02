from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.module_loading import import_string

from ...testing import CrashCase, crash_agent_run
from ...testing.databases import use_sqlite
from ..arguments import json_value, positive_int, positive_seconds
from ..command import REFUSED, RunsCommand
from ..rendering import emit
from ..rendering import line as one_line


class Command(RunsCommand):
    help = (
        "Run an agent on databases of its own, kill its worker at every boundary of every step, "
        "resume, and report what became of each run. Exits with 1 if a promise was broken. Tools "
        "really run: replace what acts on the outside with --setup."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent", help="the name under which the agent is registered")
        parser.add_argument(
            "--request", metavar="JSON", help="the request: JSON, @file, or - for standard input"
        )
        parser.add_argument(
            "--answers", metavar="JSON", help="the model's answers, in turn: a list, or @file"
        )
        parser.add_argument(
            "--inputs",
            metavar="JSON",
            help="answers to questions: an object by the name of the tool that asks (or its step's "
            "key), or @file",
        )
        parser.add_argument(
            "--setup", metavar="PATH", help="dotted path of a function that each worker calls first"
        )
        parser.add_argument(
            "--observe",
            metavar="PATH",
            help="dotted path of a function that counts, by name, what is in the world",
        )
        parser.add_argument(
            "--sqlite", action="store_true", help="on SQLite files, whatever DATABASES says"
        )
        parser.add_argument(
            "--lanes",
            type=positive_int,
            help="how many runs go on side by side (default: by cores)",
        )
        parser.add_argument(
            "--worker-seconds",
            type=positive_seconds,
            default=60.0,
            help="how long a worker may take (default: a minute)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        case = CrashCase(
            agent=options["agent"],
            request=json_value(options["request"]),
            answers=json_value(options["answers"]),
            setup=function_at(options["setup"]),
            observe=function_at(options["observe"]),
            inputs=json_value(options["inputs"]) or {},
            worker_seconds=options["worker_seconds"],
        )
        if options["sqlite"]:
            use_sqlite()
        report = crash_agent_run(case, lanes=options["lanes"], progress=self.say)
        emit(self, options["json"], report.as_dict(), lambda data: harmless(report.as_text()))
        if report.broken:
            raise SystemExit(REFUSED)

    def say(self, line: str) -> None:
        self.stderr.write(harmless(line), self.style.HTTP_INFO)
        self.stderr.flush()


def harmless(text: str) -> str:
    return "\n".join(one_line(part) for part in text.splitlines())


def function_at(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return import_string(path)
    except ImportError as error:
        raise CommandError(f"{path} can't be imported: {error}") from error
