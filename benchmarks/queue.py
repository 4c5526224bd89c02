"""What a run costs before and after its steps: enqueue, claim, settle; and a replay."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from agentruns import hotpath, hotrun
from agentruns.enums import ToolEffect
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.journal import Journal, read_result
from agentruns.models import AgentRun

from .measure import Contenders
from .raw import CLAIM, ENQUEUE, RECORDED, RESULT, SETTLE, Raw
from .steps import OWNER, RETURNED, Act, calls, running

REQUEST = Payload.of({"customer": 7, "question": "Where is my order?"})
OUTPUT = Payload.of({"answer": "It is on its way."})
STEPS_OF_A_LONG_JOURNAL = 1000


def queued() -> AgentRun:
    run: AgentRun = hotrun.enqueue("benchmark", REQUEST)[0]
    return run


def repeated(act: Callable[[], object]) -> Callable[[int], Act]:
    def prepare(operations: int) -> Act:
        def acts() -> None:
            for _ in range(operations):
                act()

        return acts

    return prepare


def enqueue() -> Contenders:
    """Accept a run: its row and the first line of its history. Without the message to a broker."""
    raw = Raw()
    return {
        "raw": repeated(lambda: raw.execute(ENQUEUE, uuid.uuid4(), REQUEST.text)),
        "agentruns": repeated(queued),
    }


def claim() -> Contenders:
    """Take a queued run, and write that into its history."""
    raw = Raw()

    def by_raw(operations: int) -> Act:
        runs = [queued() for _ in range(operations)]

        def act() -> None:
            for run in runs:
                raw.execute(CLAIM, run.uuid, OWNER)

        return act

    def by_agentruns(operations: int) -> Act:
        runs = [queued() for _ in range(operations)]

        def act() -> None:
            for run in runs:
                hotrun.claim(run.uuid, OWNER)

        return act

    return {"raw": by_raw, "agentruns": by_agentruns}


def settle() -> Contenders:
    """Complete a run with its output, and write that into its history."""
    raw = Raw()

    def by_raw(operations: int) -> Act:
        claims = [running()[1] for _ in range(operations)]

        def act() -> None:
            for held in claims:
                raw.execute(SETTLE, OUTPUT.text, held.run_id, held.owner, held.epoch, OWNER)

        return act

    def by_agentruns(operations: int) -> Act:
        taken = [running() for _ in range(operations)]

        def act() -> None:
            for run, held in taken:
                hotrun.complete(run, held, OUTPUT)

        return act

    return {"raw": by_raw, "agentruns": by_agentruns}


def replay() -> Contenders:
    """Replay one recorded step of a journal of a thousand: its share of the load, and its result."""
    raw = Raw()
    run, held = long_journal()
    keys = [call.key for call in calls(STEPS_OF_A_LONG_JOURNAL, ToolEffect.READ_ONLY)]

    def by_raw(operations: int) -> Act:
        def act() -> None:
            raw.execute(RECORDED, run.pk).fetchall()
            for key in keys[:operations]:
                raw.execute(RESULT, run.pk, key).fetchone()

        return act

    def by_agentruns(operations: int) -> Act:
        def act() -> None:
            journal = Journal(run)
            journal.load()
            for call in calls(operations, ToolEffect.READ_ONLY):
                step = journal.replay(call)
                if step is None or read_result(run, step.key) is None:
                    raise AssertionError("a recorded step was not replayed")

        return act

    assert held.run_id == run.pk
    return {"raw": by_raw, "agentruns": by_agentruns}


def long_journal() -> tuple[AgentRun, Claim]:
    run, held = running()
    for call in calls(STEPS_OF_A_LONG_JOURNAL, ToolEffect.READ_ONLY):
        hotpath.record(run, held, call, RETURNED)
    return run, held
