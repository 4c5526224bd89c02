from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...api import decide, submit_input
from ...exceptions import AgentRunError
from ..arguments import json_value
from ..doubt import questions_data, questions_text
from ..finding import find
from ..rendering import Data, emit


class Command(BaseCommand):
    help = (
        "Approve or deny a call, or answer a question, that a run waits for. Without a decision, "
        "show what it waits for and the digests that the decisions need."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid")
        parser.add_argument("step", nargs="?", help="the key of what is asked")
        decision = parser.add_mutually_exclusive_group()
        decision.add_argument("--approve", action="store_true")
        decision.add_argument("--deny", action="store_true")
        decision.add_argument("--answer", help="JSON, @file, or - for standard input")
        parser.add_argument("--by", help="who decides")
        parser.add_argument("--note", default="", help="kept in the history")
        parser.add_argument("--digest", help="of what was shown")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["step"] is None:
                emit(self, options["json"], questions_data(find(options["uuid"])), questions_text)
                return
            self.decide(options)
            status = find(options["uuid"]).status
        except AgentRunError as error:
            raise CommandError(str(error)) from error
        data = {"uuid": options["uuid"], "step": options["step"], "status": status}
        emit(self, options["json"], data, outcome_text)

    def decide(self, options: Data) -> None:
        if not (options["approve"] or options["deny"] or options["answer"] is not None):
            raise CommandError("give --approve, --deny or --answer")
        missing = [name for name in ("by", "digest") if options[name] is None]
        if missing:
            raise CommandError(f"a decision needs {', '.join(f'--{name}' for name in missing)}")
        about = {"by": options["by"], "digest": options["digest"]}
        if options["answer"] is not None:
            answer = json_value(options["answer"])
            submit_input(options["uuid"], options["step"], answer, **about)
            return
        approved = bool(options["approve"])
        decide(options["uuid"], options["step"], approved, note=options["note"], **about)


def outcome_text(data: Data) -> str:
    return f"{data['uuid']}: {data['step']} is decided; the run is {data['status']}"
