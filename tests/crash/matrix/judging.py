"""What must hold of a run when its cell is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agentruns.enums import Resolution, ToolEffect
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from agentruns.testing.invariants import Body, broken_promises
from tests.project.models import LedgerEntry

from .cells import Cell, Signal, Situation


def broken_in(cell: Cell, run: AgentRun, recorder: RecorderClient) -> Iterator[str]:
    """Describe what is otherwise than the cell says, and every promise that was broken."""
    outcome = run.termination_reason or run.status
    if outcome != cell.expected:
        yield f"{outcome} instead of {cell.expected}: {run.error_message}"
    bodies = [
        Body(body["step"], body["name"], body["effect"], body["key"])
        for body in recorder.bodies(run=run.uuid)
    ]
    # After the first of these verdicts, the body starts for the first time.
    again = max(0, did_not_happen(run) - 1)
    yield from broken_promises(run.uuid, bodies, did_not_happen=again)
    yield from not_exactly_once(run)
    yield from repeated_effects(cell, recorder)
    if cell.signal is Signal.TERM:
        yield from retries_spent(cell, run)


def did_not_happen(run: AgentRun) -> int:
    """How many verdicts said so."""
    data = [event.data for event in run.history() if event.kind == "resolved"]
    verdicts = [payload.value["verdict"] for payload in data if payload]
    return verdicts.count(Resolution.DID_NOT_HAPPEN)


def not_exactly_once(run: AgentRun) -> Iterator[str]:
    """A transactional write is in the ledger exactly if its step is in the journal."""
    entries = LedgerEntry.objects.filter(run=run.uuid).count()
    recorded = run.journal().recorded()
    booked = recorded.filter(effect=ToolEffect.TRANSACTIONAL_WRITE).count()
    if entries != booked:
        yield f"{entries} ledger entries, {booked} recorded"


def repeated_effects(cell: Cell, recorder: RecorderClient) -> Iterator[str]:
    """What a non-idempotent write does to the world is seen once, whatever anybody said."""
    seen = Counter(effect["name"] for effect in recorder.effects())
    itself = cell.effect is ToolEffect.NON_IDEMPOTENT_WRITE
    for name in ("earlier", "step") if itself else ("earlier",):
        if seen[name] > 1:
            yield f"{name} acted {seen[name]} times"


def retries_spent(cell: Cell, run: AgentRun) -> Iterator[str]:
    """A destination's 'no' costs one, so that it can't go on for ever; to stop costs none."""
    of_verdicts = did_not_happen(run) if cell.situation is Situation.VERIFIED else 0
    spent = run.requeue_count - of_verdicts
    if spent:
        yield f"a worker that was asked to stop cost {spent} retries"
