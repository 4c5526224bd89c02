from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..enums import (
    TERMINAL,
    WAITING,
    RunStatus,
    TerminationReason,
    ToolEffect,
)
from .operator import OperatorTransitions
from .resolution import ResolutionTransitions
from .worker import WorkerTransitions

INTERRUPTED_WRITE = TerminationReason.INTERRUPTED_WRITE


class AgentRun(WorkerTransitions, ResolutionTransitions, OperatorTransitions):
    """One execution of one agent's task, from request to a settled end."""

    class Meta:
        verbose_name = _("agent run")
        verbose_name_plural = _("agent runs")
        base_manager_name = "objects"
        permissions = (
            ("view_payload", _("Can read requests, arguments and results")),
            ("cancel_agentrun", _("Can cancel runs")),
            ("retry_agentrun", _("Can retry dead-lettered runs")),
            ("resolve_agentrun", _("Can give a verdict on an interrupted write")),
            ("decide_agentrun", _("Can answer approvals and questions")),
            ("move_agentrun", _("Can fail queued runs and move runs to another version")),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["agent", "idempotency_key"], name="agentruns_idempotency_key"
            ),
            models.CheckConstraint(
                name="agentruns_known_status", condition=Q(status__in=RunStatus.values)
            ),
            models.CheckConstraint(
                name="agentruns_known_effect",
                condition=Q(pending_effect__in=["", *ToolEffect.values]),
            ),
            models.CheckConstraint(
                name="agentruns_running_is_owned",
                condition=Q(
                    ~Q(claimed_by=""), status=RunStatus.RUNNING, lease_expires_at__isnull=False
                )
                | Q(~Q(status=RunStatus.RUNNING), claimed_by="", lease_expires_at__isnull=True),
            ),
            models.CheckConstraint(
                name="agentruns_terminal_is_finished",
                condition=Q(
                    status__in=sorted(TERMINAL),
                    finished_at__isnull=False,
                    termination_reason__in=TerminationReason.values,
                )
                | Q(
                    ~Q(status__in=sorted(TERMINAL)),
                    finished_at__isnull=True,
                    termination_reason="",
                ),
            ),
            models.CheckConstraint(
                name="agentruns_fence_stands_where",
                condition=Q(pending_effect="")
                | Q(status__in=[RunStatus.RUNNING, RunStatus.FAILED]),
            ),
        )
        # None of them, and no predicate, has `lease_expires_at` or `pending_effect`: a renewal or a
        # stamp would otherwise touch every index of the row.
        indexes = (
            models.Index(
                fields=["id"], name="agentruns_running", condition=Q(status=RunStatus.RUNNING)
            ),
            models.Index(
                fields=["available_at", "id"],
                name="agentruns_due",
                condition=Q(status=RunStatus.QUEUED),
            ),
            # What an agent's limit counts, and who is next when one of its runs ends.
            models.Index(
                fields=["agent"],
                name="agentruns_slots",
                condition=Q(status=RunStatus.RUNNING),
            ),
            models.Index(
                fields=["agent", "available_at", "id"],
                name="agentruns_slot_waits",
                condition=Q(status=RunStatus.QUEUED, waits_for_slot=True),
            ),
            models.Index(
                fields=["created_at", "id"],
                name="agentruns_waiting",
                condition=Q(status__in=sorted(WAITING)),
            ),
            models.Index(
                fields=["termination_reason", "finished_at"],
                name="agentruns_dead_letters",
                condition=Q(status=RunStatus.FAILED),
            ),
            # What serves the lists of the admin and of the commands, in their order.
            models.Index(fields=["status", "created_at", "id"], name="agentruns_status"),
            models.Index(fields=["agent", "created_at", "id"], name="agentruns_agent"),
            models.Index(
                fields=["correlation_id", "created_at", "id"],
                name="agentruns_by_correlation",
                condition=~Q(correlation_id=""),
            ),
            models.Index(
                fields=["requested_by", "created_at", "id"],
                name="agentruns_by_requester",
                condition=~Q(requested_by=""),
            ),
            # By the reason alone: PostgreSQL knows how often each one is, and not that a status goes
            # with it. Not by the primary key, in whose order it takes all rows for neighbours, and
            # would sort what another index has in order.
            models.Index(
                fields=["created_at", "id"],
                name="agentruns_newest_fenced",
                condition=Q(status=RunStatus.RUNNING) | Q(termination_reason=INTERRUPTED_WRITE),
            ),
            models.Index(
                fields=["termination_reason", "resolution", "finished_at", "id"],
                name="agentruns_unresolved",
                condition=Q(termination_reason=INTERRUPTED_WRITE, resolution=""),
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent} {self.uuid}"
