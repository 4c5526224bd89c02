"""What a durable step costs: its statements alone, and the whole step of a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentruns import hotpath, hotrun
from agentruns.enums import StepKind, StepOutcome, ToolEffect
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, StepCall
from agentruns.models.step import Ending, idempotency_key
from agentruns.segment import Segment

from .measure import Contenders
from .raw import RECORD_READ, RECORD_WRITE, RENEW, STAMP, Raw

OWNER = "benchmark:host:1:00000000"
ARGUMENTS = {"to": "customer@example.org", "subject": "Your order", "body": "It is on its way."}
RESULT = {"message_id": "0123456789", "accepted": True}
RETURNED = Ending(StepOutcome.RETURNED, Payload.of(RESULT))
WRITE, READ = ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.READ_ONLY

Act = Callable[[], object]


def running() -> tuple[AgentRun, Claim]:
    run, _new = hotrun.enqueue("benchmark", Payload.of("a request"))
    taken: tuple[AgentRun, Claim] | None = hotrun.claim(run.uuid, OWNER)
    assert taken is not None
    return taken


def calls(number: int, effect: ToolEffect) -> list[StepCall]:
    stored = Payload.of(ARGUMENTS)
    return [
        StepCall(f"step {n}", "step", StepKind.CALL, effect, stored, "", n) for n in range(number)
    ]


def write_step() -> Contenders:
    """Stamp a write, committed; record it."""
    raw = Raw()

    def by_raw(operations: int) -> Act:
        run, claim = running()
        owned = (claim.run_id, claim.owner, claim.epoch)
        arguments, result = Payload.of(ARGUMENTS).text, Payload.of(RESULT).text

        def act() -> None:
            for n in range(operations):
                key = f"step {n}"
                step = (run.pk, key, n, "step", arguments, idempotency_key(run.uuid, key))
                stamped = raw.execute(STAMP, *step, claim.epoch, claim.owner, *owned).fetchone()
                raw.execute(RECORD_WRITE, result, stamped[0], *owned)  # type: ignore[index]

        return act

    def by_statements(operations: int) -> Act:
        run, claim = running()
        todo = calls(operations, WRITE)

        def act() -> None:
            for call in todo:
                step = hotpath.stamp(run, claim, call)
                hotpath.record(run, claim, call, RETURNED, step)

        return act

    def by_portable(operations: int) -> Act:
        run, claim = running()
        todo = calls(operations, WRITE)

        def act() -> None:
            for call in todo:
                step = run.mark_pending_effect(claim, call)
                run.record_step(claim, call, RETURNED, step)

        return act

    return {
        "raw": by_raw,
        "statements": by_statements,
        "segment.step()": in_segment(WRITE),
        "portable form": by_portable,
    }


def read_step() -> Contenders:
    """Record a step that had no fence."""
    raw = Raw()

    def by_raw(operations: int) -> Act:
        run, claim = running()
        owned = (claim.run_id, claim.owner, claim.epoch)
        arguments, result = Payload.of(ARGUMENTS).text, Payload.of(RESULT).text

        def act() -> None:
            for n in range(operations):
                key = f"step {n}"
                step = (run.pk, key, key, n, "step", arguments, result)
                made = (idempotency_key(run.uuid, key), claim.epoch, claim.owner)
                raw.execute(RECORD_READ, *step, *made, *owned)

        return act

    def by_statements(operations: int) -> Act:
        run, claim = running()
        todo = calls(operations, READ)

        def act() -> None:
            for call in todo:
                hotpath.record(run, claim, call, RETURNED)

        return act

    def by_portable(operations: int) -> Act:
        run, claim = running()
        todo = calls(operations, READ)

        def act() -> None:
            for call in todo:
                run.record_step(claim, call, RETURNED)

        return act

    return {
        "raw": by_raw,
        "statements": by_statements,
        "segment.step()": in_segment(READ),
        "portable form": by_portable,
    }


def in_segment(effect: ToolEffect) -> Callable[[int], Act]:
    """The whole step: journal, threads, heartbeat, encoding and a body that returns at once."""
    former: list[Segment] = []

    def prepare(operations: int) -> Act:
        while former:
            former.pop().close()
        segment = Segment(*running())
        segment.open()
        former.append(segment)

        def act() -> None:
            for n in range(operations):
                segment.step(
                    "step", body, effect=effect, key=f"step {n}", arguments=ARGUMENTS, digest=""
                )

        return act

    return prepare


def body(key: str) -> Any:
    return RESULT


def renewal() -> Contenders:
    """Renew a lease."""
    raw = Raw()

    def by_raw(operations: int) -> Act:
        _run, claim = running()

        def act() -> None:
            for _ in range(operations):
                raw.execute(RENEW, claim.run_id, claim.owner, claim.epoch)

        return act

    def by_statements(operations: int) -> Act:
        run, claim = running()

        def act() -> None:
            for _ in range(operations):
                hotpath.renew(run, claim)

        return act

    def by_portable(operations: int) -> Act:
        run, claim = running()

        def act() -> None:
            for _ in range(operations):
                run.renew(claim)

        return act

    return {"raw": by_raw, "statements": by_statements, "portable form": by_portable}
