"""A worker that lost its run: it tries, in a process of its own, all that a worker may do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import django


def attempts(uuid: str, owner: str, epoch: int) -> dict[str, str]:
    from agentruns.failures import classify
    from agentruns.fields import Payload
    from agentruns.guard import Claim
    from agentruns.models import AgentRun
    from tests.factories import call, question, returned

    run = AgentRun.objects.get(uuid=uuid)
    claim = Claim(run.pk, owner, epoch)
    step = run.journal().filter(epoch=epoch).first()
    error = ValueError("a bug")
    deeds: dict[str, Callable[[], object]] = {
        "stamp": lambda: run.mark_pending_effect(claim, call("another")),
        "record its write": lambda: run.record_step(claim, call(), returned("late"), step),
        "record a read": lambda: run.record_step(claim, call("read"), returned("late")),
        "renew": lambda: run.renew(claim),
        "complete": lambda: run.complete(claim, Payload.of("late")),
        "recover": lambda: run.recover(claim, classify(error), error),
        "give back": lambda: run.give_back(claim),
        "ask": lambda: run.ask(claim, question()),
        "suspend": lambda: run.suspend(claim),
    }
    return {name: outcome(deed) for name, deed in deeds.items()}


def outcome(deed: Callable[[], object]) -> str:
    try:
        deed()
    except BaseException as error:
        return type(error).__name__
    return "done"


if __name__ == "__main__":
    django.setup()
    print(json.dumps(attempts(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
