from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..exceptions import RunNotFound
from ..models import AgentRun

if TYPE_CHECKING:
    from ..models.querysets import AgentRunQuerySet

# Adjectives of the queryset that a list can be narrowed by.
ADJECTIVES = {
    "fenced": "a write is in flight, or was when the run stopped",
    "unresolved": "dead-lettered inside a write, and nobody has given a verdict",
    "dead_lettered": "failed; no machine will retry it",
    "waiting": "waiting for a person",
    "stale": "running, but the lease has run out",
    "due": "queued, and a worker may take it now",
}


def find(uuid: str) -> AgentRun:
    """Find a run, without its payloads.

    Raises:
        RunNotFound: there is none, or this is no uuid.
    """
    try:
        found: AgentRun | None = AgentRun.objects.without_payloads().filter(uuid=UUID(uuid)).first()
    except ValueError:
        raise RunNotFound(f"{uuid!r} is not a uuid") from None
    if found is None:
        raise RunNotFound(f"there is no run {uuid}")
    return found


def listed(*, adjectives: Iterable[str] = (), **lookups: Any) -> AgentRunQuerySet:
    """Runs that fit all of these, the newest first, without their payloads."""
    runs: AgentRunQuerySet = AgentRun.objects.without_payloads()
    for adjective in adjectives:
        runs = getattr(runs, adjective)()
    given = {name: value for name, value in lookups.items() if value is not None}
    return runs.filter(**given).order_by("-pk")
