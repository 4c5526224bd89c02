from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.utils.translation import gettext_lazy as _

from .. import registry
from ..enums import FAILURES
from ..models.querysets import list_order

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..models.querysets import AgentRunQuerySet


class RunFilter(admin.SimpleListFilter):
    """A filter that takes its own choices only; another value in the address changes nothing."""

    def narrow(self, runs: AgentRunQuerySet, value: str) -> AgentRunQuerySet:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: Any) -> AgentRunQuerySet:
        runs: AgentRunQuerySet = queryset
        value = self.value()
        known = value is not None and value in dict(self.lookup_choices)
        return self.narrow(runs, value or "") if known else runs


class AttentionFilter(RunFilter):
    title = _("attention")
    parameter_name = "attention"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return (
            ("fenced", _("fenced: a write in flight or in doubt")),
            ("unresolved", _("interrupted writes without a verdict, the oldest first")),
            ("waiting", _("waiting for a person, the longest first")),
            ("stale", _("running, but the lease has run out")),
            ("due", _("queued and due, the longest first")),
            ("untaken", _("due for long, and not taken")),
        )

    def narrow(self, runs: AgentRunQuerySet, value: str) -> AgentRunQuerySet:
        narrowed: AgentRunQuerySet = getattr(runs, value)()
        return narrowed


class DeadLetterFilter(RunFilter):
    title = _("dead-lettered")
    parameter_name = "dead_lettered"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return (("any", _("for any reason")), *((r.value, r.label) for r in FAILURES))

    def narrow(self, runs: AgentRunQuerySet, value: str) -> AgentRunQuerySet:
        dead = runs.dead_lettered()
        return dead if value == "any" else dead.filter(termination_reason=value)


class RunChangeList(ChangeList):
    """The list in the order that serves its filters."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        attention, reason = request.GET.get("attention"), request.GET.get("dead_lettered")
        return list(
            list_order(
                [attention] if attention else [],
                [reason] if reason else [],
                narrowed=bool(queryset.query.where),
            )
        )


class AgentFilter(RunFilter):
    """The agents registered here; it asks the table nothing. Others are found by the search."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in registry.names()]

    def narrow(self, runs: AgentRunQuerySet, value: str) -> AgentRunQuerySet:
        return runs.filter(agent=value)
