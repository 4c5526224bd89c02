"""Commands that do one thing to several runs, and say of each what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..exceptions import AgentRunError
from .rendering import Data, emit, line


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("uuids", nargs="+", metavar="uuid", help="the runs")
    parser.add_argument("--by", required=True, help="who asks for it, for the run's history")


def do_to_each(command: BaseCommand, options: Data, verb: Callable[[str], None], done: str) -> None:
    """Call `verb` for each uuid; a refusal is said and does not stop the rest.

    Raises:
        CommandError: some were refused.
    """
    refused = 0
    for uuid in options["uuids"]:
        data: dict[str, Any] = {"uuid": uuid, "done": done, "refused": ""}
        try:
            verb(uuid)
        except AgentRunError as refusal:
            data |= {"done": "", "refused": str(refusal)}
            refused += 1
        emit(command, options["json"], data, _text)
    if refused:
        raise CommandError(f"refused: {refused} of {len(options['uuids'])}")


def _text(data: Data) -> str:
    said = data["done"] or data["refused"]
    return line(said if data["uuid"] in said else f"{data['uuid']}: {said}")
