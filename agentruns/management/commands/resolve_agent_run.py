from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...api import NO_RESULT, resolve
from ...enums import Resolution
from ...verdict import Weight
from ..arguments import JSON_HELP, json_value
from ..command import RunsCommand
from ..doubt import doubt_data, doubt_text, refuse_unswept
from ..finding import find
from ..rendering import Data, emit
from ..usage import UsageError, refuse_without

VERDICTS = {verdict.value.replace("_", "-"): verdict for verdict in Resolution}


class Command(RunsCommand):
    help = (
        "Give a verdict on the write that a run was interrupted in; it needs --by, --reason and "
        "--digest, 'happened' --result as well. Without one, show the write in doubt and the digest."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("uuid", help="the run")
        parser.add_argument("verdict", nargs="?", choices=sorted(VERDICTS), help="what happened")
        parser.add_argument("--by", help="who gives the verdict")
        parser.add_argument("--reason", help="how that person knows")
        parser.add_argument("--digest", help="of the state that the verdict is based on")
        parser.add_argument(
            "--result",
            metavar="JSON",
            help=f"for 'happened': what the step returned: {JSON_HELP}",
        )
        parser.add_argument(
            "--worker-may-act",
            action="store_true",
            help="for 'did-not-happen': confirm that the former worker may still perform the write",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_wrong_usage(options)
        run = find(options["uuid"])
        if options["verdict"] is None:
            emit(self, options["json"], doubt_data(run), doubt_text)
            return
        refuse_unswept(run)
        weight = self.resolve(options)
        data = {
            "uuid": run.uuid,
            "verdict": VERDICTS[options["verdict"]],
            "effect": weight.value,
            "status": find(run.uuid).status,
        }
        emit(self, options["json"], data, outcome_text)

    def resolve(self, options: Data) -> Weight:
        result = options["result"]
        return resolve(
            options["uuid"],
            VERDICTS[options["verdict"]],
            by=options["by"],
            reason=options["reason"],
            digest=options["digest"],
            result=NO_RESULT if result is None else json_value(result),
            worker_may_act_confirmed=options["worker_may_act"],
        )


def refuse_wrong_usage(options: Data) -> None:
    if options["verdict"] is None:
        return
    refuse_without(options, ("by", "reason", "digest"), what="a verdict")
    happened = VERDICTS[options["verdict"]] is Resolution.HAPPENED
    if happened and options["result"] is None:
        raise UsageError("'happened' needs --result: what the step returned, as JSON")
    if not happened and options["result"] is not None:
        raise UsageError(f"--result is for 'happened', and the verdict is {options['verdict']!r}")


def outcome_text(data: Data) -> str:
    said = f"{data['uuid']}: {data['verdict'].label}"
    if data["effect"] == Weight.TAKES_EFFECT.value:
        return f"{said}; the run is {data['status']}"
    instead = " in place of the former proposal"
    replaced = instead if data["effect"] == Weight.PROPOSES_ANOTHER.value else ""
    return f"{said}: proposed{replaced}; it takes effect when another person gives the same verdict"
