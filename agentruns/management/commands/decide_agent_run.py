from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...api import decide, submit_input
from ..arguments import JSON_HELP, json_value
from ..command import RunsCommand
from ..doubt import questions_data, questions_text
from ..finding import find
from ..rendering import Data, emit, line
from ..usage import UsageError, refuse_without


class Command(RunsCommand):
    help = (
        "Approve or deny a call, or answer a question, that a run waits for: a decision needs the step, "
        "one of --approve, --deny and --answer, and --by and --digest. Without a step, show what the "
        "run waits for, and the digests."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid", help="the run")
        parser.add_argument(
            "step", nargs="?", help="the key of what is asked, quoted: it may contain a ?"
        )
        decision = parser.add_mutually_exclusive_group()
        decision.add_argument(
            "--approve", action="store_true", help="an approval: have the call made"
        )
        decision.add_argument(
            "--deny", action="store_true", help="an approval: have the call not made"
        )
        decision.add_argument("--answer", metavar="JSON", help=f"answer a question: {JSON_HELP}")
        parser.add_argument("--by", help="who decides")
        parser.add_argument("--note", default="", help="kept in the history")
        parser.add_argument("--digest", help="of what was shown, which the decision is bound to")

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_wrong_usage(options)
        run = find(options["uuid"])
        if options["step"] is None:
            emit(self, options["json"], questions_data(run), questions_text)
            return
        self.decide(options)
        data = {"uuid": run.uuid, "step": options["step"], "status": find(run.uuid).status}
        emit(self, options["json"], data, outcome_text)

    def decide(self, options: Data) -> None:
        about = {"by": options["by"], "digest": options["digest"]}
        if options["answer"] is not None:
            answer = json_value(options["answer"])
            submit_input(options["uuid"], options["step"], answer, **about)
            return
        approved = bool(options["approve"])
        decide(options["uuid"], options["step"], approved, note=options["note"], **about)


def refuse_wrong_usage(options: Data) -> None:
    decided = options["approve"] or options["deny"] or options["answer"] is not None
    if decided and options["step"] is None:
        raise UsageError("a decision needs the step: the key of what is asked")
    if options["step"] is None:
        return
    if not decided:
        raise UsageError("give --approve or --deny for an approval, --answer for a question")
    refuse_without(options, ("by", "digest"), what="a decision")


def outcome_text(data: Data) -> str:
    return f"{data['uuid']}: {line(data['step'])} is decided; the run is {data['status']}"
