from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ClassVar, Self

from django.db import models, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from ..conf import conf
from ..enums import (
    ALLOWED_MOVES,
    TERMINAL,
    EventKind,
    Resolution,
    RunMode,
    RunStatus,
    StepKind,
    StepState,
    TerminationReason,
    ToolEffect,
)
from ..exceptions import GuardedColumns, LeaseLost, RunNotFound, TransitionRefused
from ..failures import Failure
from ..fields import Payload, PayloadField, storable
from ..guard import Claim, from_now, judge_ownership
from ..verdict import Action, Verdict, decide, may_retry_after_fence, retry_delay
from .event import Event, announce
from .querysets import PAYLOADS, AgentRunManager
from .step import Step, StepQuerySet

UNGUARDED_COLUMNS = frozenset({"requested_by", "correlation_id"})
NOT_OWNED = {"claimed_by": "", "lease_expires_at": None}
NO_FENCE: dict[str, Any] = {"pending_effect": "", "pending_step": None}
NO_FAILURE: dict[str, Any] = {
    "termination_reason": "",
    "finished_at": None,
    "error_class": "",
    "error_message": "",
}


class RunRow(models.Model):
    """The columns of a run, who may write them, and what every transition is made of.

    Every transition locks the row, judges its guard under the lock and writes only the columns that
    it owns. `save()` writes none of the guarded columns.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    agent = models.CharField(max_length=200)
    agent_version = models.CharField(max_length=200, blank=True)
    mode = models.CharField(max_length=16, choices=RunMode.choices, default=RunMode.QUEUED)
    requested_by = models.CharField(max_length=200, blank=True)
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001
    correlation_id = models.CharField(max_length=200, blank=True)

    # The W3C traceparent under which the run was accepted.
    trace_context = models.CharField(max_length=64, blank=True, editable=False)

    status = models.CharField(max_length=32, choices=RunStatus.choices, default=RunStatus.QUEUED)
    termination_reason = models.CharField(
        max_length=32, choices=TerminationReason.choices, blank=True
    )
    error_class = models.CharField(max_length=200, blank=True)
    error_message = models.TextField(blank=True)
    resolution = models.CharField(max_length=16, choices=Resolution.choices, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.CharField(max_length=200, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)

    claimed_by = models.CharField(max_length=255, blank=True)
    claim_epoch = models.PositiveIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    requeue_count = models.PositiveIntegerField(default=0)

    pending_effect = models.CharField(max_length=32, choices=ToolEffect.choices, blank=True)
    # Without an index: each stamp would otherwise touch every index of the row.
    pending_step = models.ForeignKey(
        "agentruns.Step",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )

    created_at = models.DateTimeField(db_default=Now())
    available_at = models.DateTimeField(db_default=Now())
    woken_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    request = PayloadField()
    output = PayloadField()
    usage = PayloadField()

    objects: ClassVar[AgentRunManager] = AgentRunManager()

    # Set by `for_judgement()`.
    has_stored_request: bool

    class Meta:
        abstract = True

    # Writing, and what may not be written.

    @classmethod
    @cache
    def guarded_columns(cls) -> frozenset[str]:
        """Every column that only a transition writes, by field name and by column name."""
        fields = [
            field for field in cls._meta.concrete_fields if field.name not in UNGUARDED_COLUMNS
        ]
        return frozenset({f.name for f in fields} | {f.attname for f in fields}) - {"id"}

    @classmethod
    def from_db(cls, db: str | None, *args: Any, **options: Any) -> Self:
        run = super().from_db(db, *args, **options)
        run._remember_guarded()
        return run

    def refresh_from_db(self, *args: Any, **options: Any) -> None:
        super().refresh_from_db(*args, **options)
        self._remember_guarded()

    def refresh_state(self) -> None:
        """Read everything but the payloads again."""
        names = [field.name for field in self._meta.concrete_fields]
        self.refresh_from_db(fields=[name for name in names if name not in PAYLOADS])

    def _remember_guarded(self) -> None:
        guarded = type(self).guarded_columns()
        self._as_loaded = {k: v for k, v in self.__dict__.items() if k in guarded}

    def refuse_guarded_values(self) -> None:
        """Refuse a new row that does not begin as a queued run that nobody has touched."""
        fresh = type(self)()
        begin = ("status", "claimed_by", "claim_epoch", "pending_effect", "resolution")
        changed = tuple(name for name in begin if getattr(self, name) != getattr(fresh, name))
        if changed:
            raise GuardedColumns(changed)

    def save(self, *args: Any, **options: Any) -> None:
        """Save the columns that no transition owns; a stale instance erases nothing.

        Raises:
            GuardedColumns: a guarded column is named in `update_fields`, or was changed in memory.
        """
        if self._state.adding:
            self.refuse_guarded_values()
            # With the primary key of an old row, it would otherwise be written over that row.
            super().save(*args, **{**options, "force_insert": True})
            return
        asked = set(options.pop("update_fields", None) or UNGUARDED_COLUMNS)
        remembered = getattr(self, "_as_loaded", {})
        changed = {k for k, v in remembered.items() if self.__dict__.get(k, v) != v}
        refused = (asked & self.guarded_columns()) | changed
        if refused:
            raise GuardedColumns(tuple(sorted(refused)))
        super().save(*args, update_fields=asked, **options)

    def insert(self, using: str | None) -> None:
        """Insert a new run; for `enqueue()` alone."""
        super().save(force_insert=True, using=using)

    def _write(self, **columns: Any) -> None:
        type(self).objects.filter(pk=self.pk).write_guarded(**columns)

    def add_event(
        self, kind: EventKind, *, actor: str = "", epoch: int | None = None, **data: Any
    ) -> None:
        """Write a line of the history; it is announced when it has been committed."""
        event = Event.objects.create(
            run_id=self.pk,
            kind=kind,
            actor=storable(actor, 255),
            epoch=self.claim_epoch if epoch is None else epoch,
            data=Payload.of(data) if data else None,
        )
        transaction.on_commit(
            partial(announce, self.uuid, self.agent, event, data),
            using=conf.DATABASE,
            robust=True,
        )

    def _move(
        self, to: RunStatus, kind: EventKind, *, actor: str, data: dict[str, Any], **columns: Any
    ) -> None:
        """Change the status of this locked row, and write that into the history.

        Raises:
            TransitionRefused: no such move.
        """
        if to not in ALLOWED_MOVES[RunStatus(self.status)]:
            raise TransitionRefused(f"run {self.uuid} is {self.status}; it can't become {to}")
        if to is not RunStatus.RUNNING:
            columns = NOT_OWNED | columns
        if to in TERMINAL:
            columns["finished_at"] = Now()
        self._write(status=to, **columns)
        self.add_event(kind, actor=actor, **data)
        self.status = to

    def journal(self) -> StepQuerySet:
        steps: StepQuerySet = Step.objects.filter(run_id=self.pk)
        return steps

    def history(self) -> models.QuerySet[Event]:
        return Event.objects.filter(run_id=self.pk)

    def waiting_status(self) -> RunStatus | None:
        """What the run waits for; None where no question is open."""
        kinds = set(self.journal().open_questions().values_list("kind", flat=True))
        if not kinds:
            return None
        approval = StepKind.APPROVAL in kinds
        return RunStatus.WAITING_FOR_APPROVAL if approval else RunStatus.WAITING_FOR_INPUT

    # The guard.

    def _lock(self) -> Self:
        row: Self = type(self).objects.lock_one(pk=self.pk)
        return row

    @contextmanager
    def _held(self, claim: Claim, *, durable: bool = False) -> Iterator[Self]:
        """The locked row of a segment that owns it, in a transaction.

        Raises:
            LeaseLost: it does not own it any more, or the row was deleted.
        """
        with transaction.atomic(using=conf.DATABASE, durable=durable):
            try:
                row = self._lock()
            except RunNotFound as deleted:
                raise LeaseLost(f"run {self.uuid} was deleted") from deleted
            judge_ownership(row, claim)
            yield row

    def standing_fence(self) -> tuple[str, int | None]:
        """The effect and the attempt of the write in flight; the journal is the second witness.

        A non-idempotent attempt without record or verdict stands for a fence even if somebody
        emptied `pending_effect` (or `pending_step`) by hand.
        """
        if not may_retry_after_fence(self.pending_effect) and self.pending_step_id is not None:
            return self.pending_effect, self.pending_step_id
        witness = (
            self.journal().unresolved_writes().order_by("-pk").values_list("pk", flat=True).first()
        )
        if witness is not None:
            return ToolEffect.NON_IDEMPOTENT_WRITE, witness
        return self.pending_effect, self.pending_step_id

    def _refuse_fence(self) -> None:
        fence, _attempt = self.standing_fence()
        if fence:
            raise TransitionRefused(f"run {self.uuid}: the fence stands ({fence})")

    # The reaper's.

    def reap(self) -> Verdict:
        """Apply the verdict to this stale row, which `lock_stale()` has locked and judged."""
        self.add_event(
            EventKind.LEASE_LOST,
            actor=self.claimed_by,
            lease_expired_at=str(self.lease_expires_at and self.lease_expires_at.isoformat()),
        )
        return self._stop(
            None, actor="reaper", error_message=f"the lease of {self.claimed_by} ran out"
        )

    @property
    def is_executable_again(self) -> bool:
        return self.has_stored_request and self.mode == RunMode.QUEUED

    def verdict(self, failure: Failure | None) -> Verdict:
        """The verdict on this locked row if it stopped now; changes nothing."""
        return decide(
            fence=self.standing_fence()[0],
            cancel_requested=self.cancel_requested_at is not None,
            executable_again=self.is_executable_again,
            failure=failure,
            requeue_count=self.requeue_count,
            max_requeues=conf.MAX_REQUEUES,
        )

    def _stop(self, failure: Failure | None, *, actor: str, **details: Any) -> Verdict:
        verdict = self.verdict(failure)
        if verdict.action is Action.CANCEL:
            self._settle_cancelled(actor)
        elif verdict.action is Action.REQUEUE:
            self._requeue(failure, actor, details)
        else:
            reason = verdict.reason or TerminationReason.NOT_RETRYABLE
            self._dead_letter(reason, actor=actor, fence=self.standing_fence(), **details)
        return verdict

    def _requeue(self, failure: Failure | None, actor: str, details: dict[str, Any]) -> None:
        delay = retry_delay(
            self.requeue_count,
            base_seconds=conf.RETRY_BACKOFF_SECONDS,
            max_seconds=conf.RETRY_BACKOFF_MAX_SECONDS,
            retry_after_seconds=failure.retry_after_seconds if failure else None,
        )
        self._move(
            RunStatus.QUEUED,
            EventKind.REQUEUED,
            actor=actor,
            data={
                "retry": self.requeue_count + 1,
                "delay_seconds": round(delay.total_seconds(), 3),
                "error": details.get("error_class", ""),
                "failure_class": str(failure.failure_class) if failure else "",
            },
            requeue_count=self.requeue_count + 1,
            available_at=from_now(delay),
            woken_at=None,
            **NO_FENCE,
        )

    def _dead_letter(
        self,
        reason: TerminationReason,
        *,
        actor: str,
        fence: tuple[str, int | None],
        error_class: str = "",
        error_message: str = "",
        uncertain: Step | None = None,
        worker_ended: bool = False,
    ) -> None:
        effect, attempt = fence
        if reason is TerminationReason.INTERRUPTED_WRITE and attempt is not None:
            said = {"error": error_message} if uncertain and uncertain.pk == attempt else {}
            Step.objects.filter(pk=attempt, state=StepState.STARTED).update(
                state=StepState.UNCERTAIN, ended_at=Now(), **said
            )
        self._move(
            RunStatus.FAILED,
            EventKind.DEAD_LETTERED,
            actor=actor,
            data={"reason": str(reason), "error": error_class, "worker_ended": worker_ended},
            termination_reason=reason,
            error_class=error_class[:200],
            error_message=error_message,
            resolution="",
            resolved_at=None,
            resolved_by="",
            pending_effect=effect,
            pending_step_id=attempt,
        )

    def _settle_cancelled(self, actor: str) -> None:
        if self.status == RunStatus.FAILED:
            raise TransitionRefused(f"run {self.uuid} has failed; it can't be cancelled")
        self._move(
            RunStatus.CANCELLED,
            EventKind.CANCELLED,
            actor=actor,
            data={},
            termination_reason=TerminationReason.CANCELLED,
            cancel_requested_at=Coalesce(F("cancel_requested_at"), Now()),
            **NO_FENCE,
        )
