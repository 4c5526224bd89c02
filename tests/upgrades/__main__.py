"""Store the journals of today's version: `python -m tests.upgrades`, once for each migration.

What is stored stays: a later version has to replay it (test_journals.py).
"""

from __future__ import annotations

import json
import os
from typing import Any

import django
from django.core import serializers
from django.test import override_settings

NOBODY = "tests.nrllm.support.NobodyIsWoken"


def store(name: str, keys: list[str]) -> None:
    from django.conf import settings

    from agentruns.models import AgentRun, Event, Step

    from .earlier import JOURNALS

    given = {**settings.AGENTRUNS, "DISPATCHER": NOBODY, "ENCRYPTION_KEYS": keys}
    with override_settings(AGENTRUNS=given):
        record()
        rows = [row for model in (AgentRun, Step, Event) for row in model._base_manager.all()]
        file = JOURNALS / f"{name}.json"
        with file.open("x") as target:
            target.write(serializers.serialize("json", rows, indent=1) + "\n")
        AgentRun.objects.all().delete()


def record() -> None:
    """Execute both agents until each has failed in its last step, and waits to be executed again."""
    from tests.nrllm.support import accept, execute

    from .sample import AGENT, FUNCTION

    for agent in (AGENT, FUNCTION):
        run = execute(accept(agent))
        answer_all(run)
        run = execute(run)
        assert (run.status, run.requeue_count) == ("queued", 1), run.error_message


def answer_all(run: Any) -> None:
    from agentruns import api

    for question in run.journal().open_questions():
        if question.kind == "approval":
            api.decide(run.uuid, question.key, True, by="ada", digest=question.digest)
        else:
            api.submit_input(run.uuid, question.key, 7, by="ada")


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings.test"
    os.environ.pop("DATABASE_URL", None)
    django.setup()
    from agentruns.testing.databases import scratch_databases

    from .earlier import JOURNALS, KEY, states
    from .sample import Sample

    Sample(failing=True)
    newest = states()[-1].partition("_")[0]
    JOURNALS.mkdir(exist_ok=True)
    with scratch_databases(1):
        store(newest, [])
        store(f"{newest}-encrypted", [KEY])
    print(json.dumps(sorted(path.name for path in JOURNALS.glob(f"{newest}*"))))


if __name__ == "__main__":
    main()
