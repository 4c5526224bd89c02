from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...api import NO_RESULT, resolve
from ...enums import Resolution
from ...exceptions import AgentRunError
from ..arguments import json_value
from ..doubt import doubt_data, doubt_text
from ..finding import find
from ..rendering import Data, emit

VERDICTS = {verdict.value.replace("_", "-"): verdict for verdict in Resolution}


class Command(BaseCommand):
    help = (
        "Give a verdict on the write that a run was interrupted in. Without one, show the write in "
        "doubt and the digest that a verdict on it needs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid")
        parser.add_argument("verdict", nargs="?", choices=sorted(VERDICTS))
        parser.add_argument("--by", help="who gives the verdict")
        parser.add_argument("--reason", help="how that person knows")
        parser.add_argument("--digest", help="of the state that the verdict is based on")
        parser.add_argument("--result", help="for 'happened': JSON, @file, or - for standard input")
        parser.add_argument(
            "--worker-may-act",
            action="store_true",
            help="for 'did-not-happen': confirm that the former worker may still perform the write",
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["verdict"] is None:
                emit(self, options["json"], doubt_data(find(options["uuid"])), doubt_text)
                return
            self.resolve(options)
            status = find(options["uuid"]).status
        except AgentRunError as error:
            raise CommandError(str(error)) from error
        data = {"uuid": options["uuid"], "verdict": VERDICTS[options["verdict"]], "status": status}
        emit(self, options["json"], data, outcome_text)

    def resolve(self, options: Data) -> None:
        missing = [name for name in ("by", "reason", "digest") if not (options[name] or "").strip()]
        if missing:
            raise CommandError(f"a verdict needs {', '.join(f'--{name}' for name in missing)}")
        result = options["result"]
        resolve(
            options["uuid"],
            VERDICTS[options["verdict"]],
            by=options["by"],
            reason=options["reason"],
            digest=options["digest"],
            result=NO_RESULT if result is None else json_value(result),
            worker_may_act_confirmed=options["worker_may_act"],
        )


def outcome_text(data: Data) -> str:
    return f"{data['uuid']}: {data['verdict'].label}; the run is {data['status']}"
