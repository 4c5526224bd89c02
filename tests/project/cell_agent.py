"""The agent of the crash matrix: one step of the effect that a cell is about."""

from __future__ import annotations

from typing import Any

from agentruns.enums import ToolEffect
from agentruns.exceptions import EffectNotApplied
from agentruns.registry import Answer, Verifier, WriteInDoubt, register
from agentruns.segment import Segment
from agentruns.testing import report_effect

from .models import LedgerEntry

CELL = "crash_matrix_cell"

# Who knows what has landed; None in cells in which no destination can be asked.
destination: Any = None


def ask(doubt: WriteInDoubt) -> Answer:
    """A final destination: what it has not seen by now it will refuse."""
    if destination is None:
        return Answer.unknown()
    landed = destination.effects(idempotency_key=doubt.idempotency_key)
    return Answer.landed({"done": doubt.step}) if landed else Answer.not_landed()


FINAL = Verifier(ask, is_final=True)


@register(CELL, verifiers={"earlier": FINAL, "step": FINAL})
def cell(segment: Segment) -> Any:
    """Do the cell's step; before it, where it is asked for, a write that is to be in doubt."""
    wanted = segment.request
    if wanted["earlier"]:
        segment.step(
            "earlier", writes("earlier", once=True), effect=ToolEffect.NON_IDEMPOTENT_WRITE
        )
    effect = ToolEffect(wanted["effect"])
    body = {
        ToolEffect.READ_ONLY: reads,
        ToolEffect.TRANSACTIONAL_WRITE: books(segment),
    }.get(effect, writes("step", once=effect is ToolEffect.NON_IDEMPOTENT_WRITE))
    return segment.step("step", body, effect=effect, needs_approval=wanted["approval"])


def reads(key: str) -> dict[str, Any]:
    return {"done": "step"}


def writes(name: str, *, once: bool) -> Any:
    """A write; a destination that can be asked carries out what is to happen once, once."""

    def write(key: str) -> dict[str, Any]:
        if once and destination is not None and destination.effects(idempotency_key=key):
            raise EffectNotApplied("a request with this key has been carried out")
        report_effect(name, idempotency_key=key)
        return {"done": name}

    return write


def books(segment: Segment) -> Any:
    def book(key: str) -> dict[str, Any]:
        LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=100)
        return {"done": "step"}

    return book
