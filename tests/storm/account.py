"""What became of every run, by its rows and by the recorder, who saw the bodies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentruns.enums import TERMINAL, WAITING, EventKind, Resolution, StepState, ToolEffect
from agentruns.models import AgentRun, Event
from agentruns.testing.invariants import Body, broken_promises
from tests.project.models import LedgerEntry


@dataclass
class Account:
    outcomes: Counter[str] = field(default_factory=Counter)
    repeats: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    bodies: int = 0
    events: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not (self.repeats or self.lost or self.broken)


def settle(accepted: Iterable[UUID], seen: list[dict[str, Any]]) -> Account:
    """Account for every accepted run."""
    account = Account(bodies=len(seen))
    bodies: dict[str, list[Body]] = defaultdict(list)
    for body in seen:
        name, key = body["name"], body["key"]
        bodies[body["run"]].append(Body(body["step"], name, body["effect"], key))
    kinds = Counter(str(kind) for kind in Event.objects.values_list("kind", flat=True))
    account.events = dict(sorted(kinds.items()))
    for uuid in accepted:
        run = AgentRun.objects.filter(uuid=uuid).first()
        if run is None or run.status not in TERMINAL | WAITING:
            account.lost.append(f"{uuid}: {run and run.status}")
            continue
        account.outcomes[run.termination_reason or run.status] += 1
        denied = denials(run)
        account.repeats += repeats(run, bodies[str(uuid)], denied)
        most = max(denied.values(), default=0)
        account.broken += [
            f"{uuid}: {promise}"
            for promise in broken_promises(uuid, bodies[str(uuid)], did_not_happen=most)
        ]
        account.broken += uneven_ledger(run)
    return account


def denials(run: AgentRun) -> Counter[str]:
    """How often an operator said of which step that it did not happen."""
    said = [event.details for event in run.history().filter(kind=EventKind.RESOLVED)]
    return Counter(
        data["step"] for data in said if data.get("verdict") == Resolution.DID_NOT_HAPPEN
    )


def repeats(run: AgentRun, bodies: list[Body], denied: Counter[str]) -> Iterator[str]:
    once = ToolEffect.NON_IDEMPOTENT_WRITE
    for key, times in Counter(body.key for body in bodies if body.effect == once).items():
        if times > 1 + denied[key]:
            yield f"{run.uuid}: {key} started {times} times"


def uneven_ledger(run: AgentRun) -> Iterator[str]:
    """A transactional write has one entry if it is recorded, and none otherwise."""
    recorded = run.journal().filter(effect=ToolEffect.TRANSACTIONAL_WRITE, state=StepState.RECORDED)
    keys = sorted(recorded.values_list("idempotency_key", flat=True))
    entries = LedgerEntry.objects.filter(run=run.uuid).values_list("idempotency_key", flat=True)
    if sorted(entries) != keys:
        yield f"{run.uuid}: the ledger has {len(entries)} entries for {len(keys)} recorded writes"
