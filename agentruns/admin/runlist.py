from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..enums import RunStatus
from ..models import AgentRun
from ..models.querysets import NEWEST, NEWEST_OF_SOME
from .base import RunBase
from .filters import AgentFilter, AttentionFilter, DeadLetterFilter, RunChangeList
from .paginator import BoundedPaginator
from .wording import duration

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


def named(term: str) -> Q:
    """Where this term is the whole of something: only there, so that an index finds and orders."""
    lookups = [Q(**{column: term}) for column in ("agent", "correlation_id", "requested_by")]
    there = [
        lookup
        for lookup in lookups
        if AgentRun.objects.filter(lookup).order_by(*NEWEST_OF_SOME).values("pk").first()
    ]
    return reduce(or_, there) if there else Q(pk__in=[])


OWN_FILTERS = frozenset(
    kind.parameter_name for kind in (AttentionFilter, DeadLetterFilter, AgentFilter)
)


class RunList(RunBase):
    """The list of runs: no payload, a constant number of queries, no row read beyond its end."""

    list_display = (
        "short_uuid", "status_and_reason", "agent", "age", "owner", "lease_left", "retries",
        "fence",
    )  # fmt: skip
    list_filter = (AttentionFilter, DeadLetterFilter, "status", AgentFilter)
    search_fields = ("uuid", "agent", "correlation_id", "requested_by")
    search_help_text = gettext_lazy("The whole uuid, agent, correlation id or requester.")
    ordering = NEWEST
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 0
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Take the list's own filters from the address, and no column: one would tell payloads.

        Django allows every lookup of every column of the model, and which rows are then found says
        what is in them to somebody who may not see it.
        """
        if lookup == "status__exact":
            return value in RunStatus.values
        return lookup in OWN_FILTERS

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[RunChangeList]:
        return RunChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(uuid=UUID(term)), False
        except ValueError:
            return queryset.filter(named(term)).order_by(*NEWEST_OF_SOME), False

    def response_action(
        self, request: HttpRequest, queryset: Any, *args: Any, **options: Any
    ) -> HttpResponse | None:
        # 'Select all' would act on rows that nobody has seen; the page does not offer it.
        if request.POST.get("select_across", "0") != "0":
            raise PermissionDenied
        answer: HttpResponse | None = super().response_action(request, queryset, *args, **options)
        return answer

    @admin.display(description=gettext_lazy("run"))
    def short_uuid(self, run: AgentRun) -> str:
        return str(run.uuid)

    @admin.display(description=gettext_lazy("status"))
    def status_and_reason(self, run: AgentRun) -> str:
        if run.status == RunStatus.FAILED:
            return f"{run.get_status_display()}: {run.get_termination_reason_display()}"
        if run.status == RunStatus.QUEUED and run.waits_for_slot:
            return _("%(status)s: waits for a free slot") % {"status": run.get_status_display()}
        return run.get_status_display()

    @admin.display(description=gettext_lazy("age"))
    def age(self, run: AgentRun) -> str:
        return duration(run.read_at - run.created_at)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("owner"), empty_value="")
    def owner(self, run: AgentRun) -> str:
        return run.claimed_by

    @admin.display(description=gettext_lazy("lease left"))
    def lease_left(self, run: AgentRun) -> str:
        if run.lease_expires_at is None:
            return ""
        left = run.lease_expires_at - run.read_at  # type: ignore[attr-defined]
        if left.total_seconds() < 0:
            return _("ran out %(ago)s ago") % {"ago": duration(left)}
        return duration(left)

    @admin.display(description=gettext_lazy("retries"))
    def retries(self, run: AgentRun) -> int:
        return run.requeue_count

    @admin.display(description=gettext_lazy("fence"))
    def fence(self, run: AgentRun) -> str:
        if run.pending_effect and run.resolution:
            return f"{run.get_pending_effect_display()} ({run.get_resolution_display()})"
        return run.get_pending_effect_display() if run.pending_effect else ""
