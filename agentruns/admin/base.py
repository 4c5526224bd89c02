from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models.functions import Now

from ..models import AgentRun
from ..models.querysets import NEWEST

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..models.querysets import AgentRunQuerySet

    RunModelAdmin = admin.ModelAdmin[AgentRun]
else:
    RunModelAdmin = admin.ModelAdmin


class RunBase(RunModelAdmin):
    """What list, pages and actions share: what is read of a run, and who may do what.

    Nobody adds, changes or deletes a run; each verb has its permission.
    """

    def get_queryset(self, request: HttpRequest) -> AgentRunQuerySet:
        # The database's time, with which its leases are compared.
        runs: AgentRunQuerySet = AgentRun.objects.without_payloads().annotate(read_at=Now())
        return runs.order_by(*NEWEST)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AgentRun | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AgentRun | None = None) -> bool:
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "cancel_agentrun")

    def has_wake_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry_agentrun")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "resolve_agentrun")

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "decide_agentrun")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry_agentrun")

    def has_move_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "move_agentrun")

    def has_payload_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "view_payload")

    def _may(self, request: HttpRequest, permission: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{permission}")
