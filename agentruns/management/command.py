from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    SystemCheckError,
)
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor

from ..conf import conf
from ..exceptions import AgentRunError
from .rendering import json_line, line
from .usage import USAGE, UsageError

REFUSED = 1


class RunsCommand(BaseCommand):
    """A command of this app: no option is abbreviated, and every error has an exit code.

    It is 1 where something was refused, not found or failed, and 2 where the command line is wrong.
    An error is one line on standard error; of JSON with `--json`.
    """

    # Instead of both, for a monitoring system that has a code of its own for it.
    failure_code: int | None = None

    own_errors = False
    json_errors = False
    was_parsed = False

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, allow_abbrev=False, **options)
        parser.add_argument(
            "--json", action="store_true", help="print JSON, on one line; an error, too"
        )
        if self.own_errors:
            # argparse would print its usage, which buries the error, and end the process.
            parser.called_from_command_line = False
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        self.was_parsed = True
        try:
            return super().execute(*args, **options)
        except SystemCheckError:
            raise
        except (AgentRunError, CommandError) as error:
            code = getattr(error, "returncode", REFUSED)
            raise CommandError(line(error), returncode=code) from error

    def run_from_argv(self, argv: list[str]) -> None:
        self.own_errors = "--traceback" not in argv[2:]
        self.json_errors = "--json" in argv[2:]
        if not self.own_errors:
            super().run_from_argv(argv)
            return
        try:
            super().run_from_argv([*argv[:2], "--traceback", *argv[2:]])
        except (CommandError, Error) as error:
            kind, message = self._kind_and_message(error)
            usage = kind == UsageError.__name__
            code = USAGE if usage else getattr(error, "returncode", REFUSED)
            if self.json_errors:
                said = json_line({"error": {"type": kind, "message": message}})
            elif isinstance(error, SystemCheckError):
                said = message
            else:
                see = f"; see {Path(argv[0]).name} {argv[1]} --help" if usage else ""
                said = line(f"{_shown_kind(error, kind)}: {message}{see}")
            self.stderr.write(said, lambda text: text)
            sys.exit(code if self.failure_code is None else self.failure_code)

    def _kind_and_message(self, error: Exception) -> tuple[str, str]:
        if not self.was_parsed:
            return UsageError.__name__, str(error).removeprefix("Error: ")
        if isinstance(error, Error):
            return type(error).__name__, said_by_database(error)
        said = error.__cause__ or error
        return type(said).__name__, str(said)


def _shown_kind(error: Exception, kind: str) -> str:
    """What a person is told of an error's kind: of those that are ours, whose words say all, little."""
    return kind if isinstance(error, Error) or kind == UsageError.__name__ else "CommandError"


def said_by_database(error: Error) -> str:
    """An error of the database on one line, with what to do where that is known."""
    # PostgreSQL quotes the statement after what it says of it.
    message = str(error).partition("\nLINE ")[0]
    return " ".join(message.split()) + _migrate_first()


def _migrate_first() -> str:
    """What to do where the tables are not this version's; '' where they are, or nobody knows."""
    connection = connections[conf.DATABASE]
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes("agentruns"))
    except Error:
        return ""
    finally:
        connection.close()
    return "; the tables are not this version's: run manage.py migrate" if plan else ""
