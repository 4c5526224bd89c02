from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import registry
from ..enums import FAILURES
from ..exceptions import NoSuchAgent, RunNotFound
from ..models import AgentRun
from ..models.querysets import list_order

if TYPE_CHECKING:
    from ..models.querysets import AgentRunQuerySet


# Adjectives of the queryset that a list can be narrowed by.
ADJECTIVES = {
    "fenced": "inside a write, or dead-lettered inside one that must not be repeated",
    "unresolved": "dead-lettered inside such a write, and nobody has given a verdict",
    "dead_lettered": "failed; no machine will retry it",
    "waiting": "waiting for a person",
    "stale": "running, but the lease has run out",
    "due": "queued, and a worker may take it now",
    "in_line": "due, and its agent has as many runs as it may have at a time",
    "untaken": "due for UNTAKEN_SECONDS: no worker serves it, or has time for it",
}


def find(uuid: str | UUID) -> AgentRun:
    """Find a run, without its payloads.

    Raises:
        RunNotFound: there is none, or this is no uuid.
    """
    try:
        found: AgentRun | None = (
            AgentRun.objects.without_payloads().filter(uuid=UUID(str(uuid))).first()
        )
    except ValueError:
        raise RunNotFound(f"{uuid!r} is not a uuid") from None
    if found is None:
        raise RunNotFound(f"there is no run {uuid}")
    return found


def refuse_unknown_agents(names: Iterable[str]) -> None:
    """Refuse a name that no registered agent and no run has: it is mistyped.

    Raises:
        NoSuchAgent: names the registered ones.
    """
    known = registry.names()
    for name in set(names) - set(known):
        if not AgentRun.objects.filter(agent=name).exists():
            raise NoSuchAgent(name, known)


def listed(*, adjectives: Sequence[str] = (), **lookups: Any) -> AgentRunQuerySet:
    """Runs that fit all of these, without their payloads, in an order that an index serves.

    That is the newest first; of those that wait for something, who waits longest.
    """
    runs: AgentRunQuerySet = AgentRun.objects.without_payloads()
    for adjective in adjectives:
        runs = getattr(runs, adjective)()
    given = {name: value for name, value in lookups.items() if value is not None}
    narrowed = bool(adjectives or given)
    reasons = given.get("termination_reason__in", [])
    if reasons and set(reasons) <= set(FAILURES):
        runs = runs.dead_lettered()
    return runs.filter(**given).order_by(*list_order(adjectives, reasons, narrowed=narrowed))
