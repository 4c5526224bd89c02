from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar

from django.db import connections, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..enums import (
    ALLOWED_MOVES,
    TERMINAL,
    WAITING,
    EventKind,
    Resolution,
    RunMode,
    RunStatus,
    StepOutcome,
    StepState,
    TerminationReason,
    ToolEffect,
)
from ..exceptions import CancelRequested, GuardedColumns, LeaseLost, TransitionRefused
from ..failures import Failure
from ..fields import Payload, PayloadField, label, storable
from ..guard import Claim, from_now, judge_ownership, new_lease
from ..verdict import Action, Verdict, decide, may_retry_after_fence, retry_delay
from .event import Event
from .querysets import PAYLOADS, AgentRunManager
from .step import UNRESOLVED_WRITE, Ending, Step, StepCall, recorded_columns

UNGUARDED_COLUMNS = frozenset({"requested_by", "correlation_id"})
NOT_OWNED = {"claimed_by": "", "lease_expires_at": None}
NO_FENCE: dict[str, Any] = {"pending_effect": "", "pending_step": None}
NO_FAILURE: dict[str, Any] = {
    "termination_reason": "",
    "finished_at": None,
    "error_class": "",
    "error_message": "",
}


class AgentRun(models.Model):
    """One execution of one agent's task, from request to a settled end.

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
        verbose_name = _("agent run")
        verbose_name_plural = _("agent runs")
        base_manager_name = "objects"
        permissions = (
            ("view_payload", _("Can read requests, arguments and results")),
            ("cancel_agentrun", _("Can cancel runs")),
            ("retry_agentrun", _("Can retry dead-lettered runs")),
            ("resolve_agentrun", _("Can give a verdict on an interrupted write")),
            ("decide_agentrun", _("Can answer approvals and questions")),
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
        )

    def __str__(self) -> str:
        return f"{self.agent} {self.uuid}"

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
    def from_db(cls, db: str | None, *args: Any, **options: Any) -> AgentRun:
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
            super().save(*args, **options)
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
        Event.objects.create(
            run_id=self.pk,
            kind=kind,
            actor=storable(actor, 255),
            epoch=self.claim_epoch if epoch is None else epoch,
            data=Payload.of(data) if data else None,
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

    # The guard.

    def _lock(self) -> AgentRun:
        row: AgentRun = type(self).objects.lock_one(pk=self.pk)
        return row

    @contextmanager
    def _held(self, claim: Claim, *, durable: bool = False) -> Iterator[AgentRun]:
        """The locked row of a segment that owns it, in a transaction.

        Raises:
            LeaseLost: it does not own it any more.
        """
        with transaction.atomic(using=conf.DATABASE, durable=durable):
            row = self._lock()
            judge_ownership(row, claim)
            yield row

    def standing_fence(self) -> tuple[str, int | None]:
        """The effect and the attempt of the write in flight; the journal is the second witness.

        A non-idempotent attempt without record or verdict stands for a fence even if somebody
        emptied `pending_effect` by hand.
        """
        if not may_retry_after_fence(self.pending_effect):
            return self.pending_effect, self.pending_step_id
        witness = (
            self.steps.unresolved_writes().order_by("-pk").values_list("pk", flat=True).first()
        )
        if witness is not None:
            return ToolEffect.NON_IDEMPOTENT_WRITE, witness
        return self.pending_effect, self.pending_step_id

    # A worker's transitions.

    def take(self, owner: str) -> Claim | None:
        """Claim this locked, due row; dead-letter it if its journal holds an unresolved write."""
        fence, _attempt = self.standing_fence()
        if not may_retry_after_fence(fence):
            self._stop(None, actor=owner)
            return None
        claim = Claim(self.pk, owner, self.claim_epoch + 1)
        self.claim_epoch = claim.epoch
        self._move(
            RunStatus.RUNNING,
            EventKind.CLAIMED,
            actor=owner,
            data={},
            claimed_by=owner,
            claim_epoch=claim.epoch,
            lease_expires_at=new_lease(),
            started_at=Coalesce(F("started_at"), Now()),
        )
        return claim

    def renew(self, claim: Claim) -> None:
        """Let the lease begin anew.

        Raises:
            LeaseLost: the run is not this segment's any more; nothing changed.
        """
        with self._held(claim) as row:
            row._write(lease_expires_at=new_lease())

    def mark_pending_effect(self, claim: Claim, call: StepCall) -> Step:
        """Stamp the fence: effect, attempt and lease in one committed write, before the body (ADR-112).

        If the process dies after this, the run is known to have stopped inside this write.

        Raises:
            LeaseLost: the run is not this segment's any more, or an earlier attempt of this step
                reports that it landed, so that the run was dead-lettered.
            CancelRequested: somebody asked to cancel; the write must not start.
            TransitionRefused: another fence stands, or the step is recorded already.
            RuntimeError: inside an outer transaction, where nobody else would see the fence.
        """
        with self._held(claim, durable=True) as row:
            flush_commits()
            if row.cancel_requested_at is not None:
                raise CancelRequested(f"run {self.uuid}: a cancel was requested")
            known = list(row.steps.without_payloads().filter(Q(key=call.key) | UNRESOLVED_WRITE))
            if any(step.state == StepState.RECORDED for step in known):
                raise TransitionRefused(f"step {call.key} of run {self.uuid} is recorded already")
            if row.pending_effect or any(is_unresolved(step) for step in known):
                raise TransitionRefused(f"run {self.uuid}: a fence stands; one write at a time")
            landed = [step for step in known if step.landed_late]
            if landed and not may_retry_after_fence(call.effect):
                row._dead_letter(
                    TerminationReason.INTERRUPTED_WRITE,
                    actor=claim.owner,
                    fence=(ToolEffect.NON_IDEMPOTENT_WRITE, landed[-1].pk),
                    error_message="an earlier attempt of this write reports that it landed",
                )
                step = None
            else:
                step = Step.of(row, claim, call, len(known) + 1, state=StepState.STARTED)
                step.save(force_insert=True)
                row._write(
                    pending_effect=call.effect, pending_step=step, lease_expires_at=new_lease()
                )
        if step is None:
            raise LeaseLost(f"run {self.uuid}: an earlier attempt of {call.key} landed")
        return step

    def own_attempt(self, claim: Claim, key: str) -> Step | None:
        """Read back a stamp or a record whose commit is unknown: this epoch's attempt at `key`.

        It waits for a lost transaction that may still hold the row.
        """
        with transaction.atomic(using=conf.DATABASE):
            self._lock()
            return (
                self.steps.filter(key=key, epoch=claim.epoch, owner=claim.owner)
                .order_by("-attempt")
                .first()
            )

    def record_step(
        self, claim: Claim, call: StepCall, ending: Ending, step: Step | None = None
    ) -> bool:
        """Record how a body ended, clear its own fence and renew the lease, in one transaction.

        `step` is the stamped attempt; None for a step that had no fence. Only recording the fenced
        attempt clears the fence. Recording again what is recorded in this epoch changes nothing.
        Returns whether a cancel was requested meanwhile.

        Raises:
            LeaseLost: the run is not this segment's any more; nothing changed.
        """
        with self._held(claim) as row:
            columns: dict[str, Any] = {"lease_expires_at": new_lease()}
            if step is None:
                recorded = recorded_columns(call.key, ending)
                Step.of(row, claim, call, call.attempt, **recorded).save(force_insert=True)
            else:
                row._record_attempt(step, ending)
                if row.pending_step_id == step.pk:
                    columns |= NO_FENCE
            row._write(**columns)
            return row.cancel_requested_at is not None

    def _record_attempt(self, step: Step, ending: Ending) -> None:
        written = (
            Step.objects.filter(pk=step.pk, state=StepState.STARTED)
            .filter(epoch=step.epoch, owner=step.owner)
            .update(**recorded_columns(step.key, ending))
        )
        if not written:
            raise TransitionRefused(f"step {step.key} of run {self.uuid} is not in flight")

    def add_late_evidence(
        self, claim: Claim, step: Step, ending: Ending | None, error: str
    ) -> None:
        """Write down how a write ended whose segment has lost the run; its state does not change.

        `ending` is None for a body that raised (`error` says what).
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            own = Step.objects.filter(pk=step.pk, epoch=claim.epoch, owner=claim.owner)
            written = (
                own.filter(late_at__isnull=True)
                .exclude(state=StepState.RECORDED)
                .update(
                    late_outcome=ending.outcome if ending else "raised",
                    late_result=ending.result if ending else None,
                    late_error=storable(error),
                    late_at=Now(),
                )
            )
            if written:
                row.add_event(
                    EventKind.LATE_EVIDENCE,
                    actor=claim.owner,
                    epoch=claim.epoch,
                    step=step.key,
                    outcome=str(ending.outcome) if ending else "raised",
                )

    def suspend(self, claim: Claim, call: StepCall, status: RunStatus) -> None:
        """Park the run until a person answers `call`; a parked run goes on in the background.

        Raises:
            LeaseLost: the run is not this segment's any more.
            CancelRequested: somebody asked to cancel.
            TransitionRefused: a fence stands.
        """
        kind = (
            EventKind.APPROVAL_ASKED
            if status is RunStatus.WAITING_FOR_APPROVAL
            else EventKind.INPUT_ASKED
        )
        with self._held(claim) as row:
            if row.cancel_requested_at is not None:
                raise CancelRequested(f"run {self.uuid}: a cancel was requested")
            row._refuse_fence()
            if not row.steps.filter(key=call.key).exists():
                Step.of(row, claim, call, 1, state=StepState.STARTED).save(force_insert=True)
            row._move(status, kind, actor=claim.owner, data={"step": call.key}, mode=RunMode.QUEUED)

    def _refuse_fence(self) -> None:
        fence, _attempt = self.standing_fence()
        if fence:
            raise TransitionRefused(f"run {self.uuid}: the fence stands ({fence})")

    def complete(self, claim: Claim, output: Payload, usage: Payload | None = None) -> None:
        """Settle as COMPLETED with this output; as CANCELLED if that was requested meanwhile.

        Raises:
            LeaseLost: the run is not this segment's any more.
            TransitionRefused: a fence stands.
        """
        with self._held(claim) as row:
            row._refuse_fence()
            if row.cancel_requested_at is not None:
                row._settle_cancelled(claim.owner)
                return
            row._move(
                RunStatus.COMPLETED,
                EventKind.COMPLETED,
                actor=claim.owner,
                data={},
                termination_reason=TerminationReason.COMPLETED,
                output=output,
                usage=usage,
            )

    def give_back(self, claim: Claim) -> Verdict:
        """Return the run to the queue at once, no retry spent: its process is to stop.

        With a fence or a requested cancel the verdict decides instead.
        """
        with self._held(claim) as row:
            fence, _attempt = row.standing_fence()
            if fence or row.cancel_requested_at is not None or not row.is_executable_again:
                return row._stop(None, actor=claim.owner)
            row._move(
                RunStatus.QUEUED,
                EventKind.GIVEN_BACK,
                actor=claim.owner,
                data={},
                available_at=Now(),
                woken_at=Now(),
            )
            return Verdict(Action.REQUEUE)

    def recover(
        self,
        claim: Claim,
        failure: Failure,
        error: BaseException,
        uncertain: Step | None = None,
    ) -> Verdict:
        """Apply the verdict to a run whose segment failed and still owns it.

        `uncertain` is the attempt whose body ended without saying what happened.

        Raises:
            LeaseLost: the run is not this segment's any more; nothing changed.
        """
        with self._held(claim) as row:
            return row._stop(
                failure,
                actor=claim.owner,
                error_class=type(error).__name__,
                error_message=storable(error),
                uncertain=uncertain,
                worker_ended=True,
            )

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

    # A person's.

    def cancel(self, *, by: str) -> RunStatus:
        """Cancel: at once where no fence stands, else after the write in flight is recorded.

        Cancelling a cancelled run changes nothing. Returns the status that the run then has.

        Raises:
            TransitionRefused: the run has completed or failed.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status == RunStatus.CANCELLED:
                return RunStatus.CANCELLED
            if row.status == RunStatus.RUNNING and row.standing_fence()[0]:
                if row.cancel_requested_at is None:
                    row._write(cancel_requested_at=Now())
                    row.add_event(EventKind.CANCEL_ASKED, actor=by)
                return RunStatus.RUNNING
            row._settle_cancelled(by)
            return RunStatus.CANCELLED

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

    def retry(self, *, by: str, reason: str = "") -> None:
        """Execute a dead-lettered run again, from its journal, with a new budget.

        Raises:
            TransitionRefused: it is not FAILED, has no stored request, or a write of it is uncertain.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            fence, _attempt = row.standing_fence()
            if row.status != RunStatus.FAILED or not may_retry_after_fence(fence):
                raise TransitionRefused(
                    f"run {self.uuid} is {row.status} with fence {fence!r}; only a failed run whose "
                    "writes are all certain can be retried"
                )
            row._leave_failed(EventKind.RETRIED, by, {"why": storable(reason)})

    def _leave_failed(self, kind: EventKind, by: str, data: dict[str, Any], **columns: Any) -> None:
        if not self.has_stored_request:
            raise TransitionRefused(f"run {self.uuid} has no stored request to execute again")
        self._move(
            RunStatus.QUEUED,
            kind,
            actor=by,
            data=data,
            mode=RunMode.QUEUED,
            requeue_count=0,
            available_at=Now(),
            woken_at=Now(),
            **NO_FAILURE,
            **NO_FENCE,
            **columns,
        )

    def resolution_digest(self) -> str:
        """A digest of what a verdict is based on: status, epoch, attempt and late evidence."""
        _effect, attempt = self.standing_fence()
        step = Step.objects.without_payloads().filter(pk=attempt).first()
        facts = [self.status, self.claim_epoch, self.resolution, attempt]
        facts += [step.state, step.late_outcome, step.late_error] if step else []
        return hashlib.sha256(repr([str(fact) for fact in facts]).encode()).hexdigest()

    def former_worker_may_act(self) -> bool:
        """Whether the segment that left the fence may still be inside its write.

        It is known to be gone where it ended itself, or MAX_STEP_SECONDS after its lease ended.
        """
        last = self.events.filter(kind=EventKind.DEAD_LETTERED).order_by("-pk").first()
        if last is None or (last.data is not None and last.data.value.get("worker_ended")):
            return False
        gone = timedelta(seconds=conf.MAX_STEP_SECONDS)
        return self.events.filter(pk=last.pk, at__gt=from_now(-gone)).exists()

    def resolve(
        self,
        verdict: Resolution,
        *,
        by: str,
        reason: str,
        digest: str,
        result: Payload | None = None,
        worker_may_act_confirmed: bool = False,
    ) -> None:
        """Give a verdict on the interrupted write of a dead-lettered run.

        HAPPENED records `result` as the step and lets the run go on; DID_NOT_HAPPEN lets the write be
        executed again with the same idempotency key; LEFT closes it as it is. `digest` is the
        `resolution_digest()` of the state that the verdict is based on.

        Raises:
            TransitionRefused: the state has moved on, there is no interrupted write, a result is
                missing, or 'it did not happen' while the former worker may still act.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            effect, attempt = row.standing_fence()
            if row.status != RunStatus.FAILED or may_retry_after_fence(effect):
                raise TransitionRefused(f"run {self.uuid} has no interrupted write to resolve")
            if row.resolution_digest() != digest:
                raise TransitionRefused(
                    f"run {self.uuid} has changed since it was shown: look at it again"
                )
            row._apply_resolution(verdict, attempt, by, reason, result, worker_may_act_confirmed)

    def _apply_resolution(
        self,
        verdict: Resolution,
        attempt: int | None,
        by: str,
        reason: str,
        result: Payload | None,
        worker_may_act_confirmed: bool,
    ) -> None:
        data: dict[str, Any] = {"verdict": str(verdict), "why": storable(reason)}
        by = label(by, "by")
        if verdict is Resolution.LEFT:
            self._write(resolution=verdict, resolved_at=Now(), resolved_by=by)
            self.add_event(EventKind.RESOLVED, actor=by, **data)
            return
        step = Step.objects.get(pk=attempt)
        if verdict is Resolution.HAPPENED:
            if result is None:
                raise TransitionRefused("'it happened' needs the result that the step returned")
            ending = Ending(StepOutcome.RETURNED, result)
            columns = recorded_columns(step.key, ending)
        else:
            if self.former_worker_may_act() and not worker_may_act_confirmed:
                raise TransitionRefused(
                    "the former worker may still be inside the write: wait until it is gone, or "
                    "confirm that it may still act"
                )
            columns = {"state": StepState.NOT_APPLIED, "ended_at": Now()}
        Step.objects.filter(pk=step.pk).update(**columns)
        self._leave_failed(
            EventKind.RESOLVED,
            by,
            data | {"step": step.key},
            resolution="",
            resolved_at=Now(),
            resolved_by=by,
        )

    def answer(
        self, key: str, answer: Payload, *, by: str, kind: EventKind = EventKind.ANSWERED
    ) -> None:
        """Record a person's answer to the step that the run waits for, and queue the run.

        Raises:
            TransitionRefused: the run does not wait for this step, or it was answered already.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status not in WAITING:
                raise TransitionRefused(f"run {self.uuid} is {row.status}; it waits for nobody")
            written = row.steps.filter(
                key=key, state=StepState.STARTED, kind__in=["approval", "input"]
            ).update(**recorded_columns(key, Ending(StepOutcome.RETURNED, answer)))
            if not written:
                raise TransitionRefused(f"run {self.uuid} does not wait for {key!r}")
            row._move(
                RunStatus.QUEUED,
                kind,
                actor=by,
                data={"step": key},
                available_at=Now(),
                woken_at=Now(),
            )


def is_unresolved(step: Step) -> bool:
    return step.effect == ToolEffect.NON_IDEMPOTENT_WRITE and step.state in (
        StepState.STARTED,
        StepState.UNCERTAIN,
    )


def flush_commits() -> None:
    """Have this transaction's commit reach the disk, where the server was told not to wait for it."""
    connection = connections[conf.DATABASE]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
