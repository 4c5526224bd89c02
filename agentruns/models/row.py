from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, Self

from django.db import models, transaction
from django.db.models.functions import Now

from ..conf import conf
from ..enums import (
    ALLOWED_MOVES,
    EventKind,
    Resolution,
    RunMode,
    RunStatus,
    StepKind,
    StepOutcome,
    TerminationReason,
    ToolEffect,
)
from ..exceptions import GuardedColumns, LeaseLost, RunNotFound, TransitionRefused
from ..failures import Failure
from ..fields import Payload, PayloadField, storable
from ..guard import Claim, from_now, judge_ownership
from ..verdict import Verdict, decide, is_executable_again
from .event import Event, announce_after_commit
from .partial import PartialIndexes
from .querysets import PAYLOADS, AgentRunManager
from .step import Ending, Step, StepQuerySet, mark_uncertain, raised_columns
from .stopping import (
    REAPER,
    Stopped,
    after_stop,
    cancelled,
    lease_lost,
    move_columns,
    ran_out,
    standing_fence,
)

UNGUARDED_COLUMNS = frozenset({"requested_by", "correlation_id"})
NO_FAILURE: dict[str, Any] = {
    "termination_reason": "",
    "finished_at": None,
    "error_class": "",
    "error_message": "",
}


class RunRow(PartialIndexes):
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
    # A worker wanted to take it, and its agent had as many runs as it may have at a time.
    waits_for_slot = models.BooleanField(default=False, db_default=False)

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
    # Of the digests in its journal; NULL where they are plain.
    digest_key = PayloadField()

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

    def take_over(self, **found: Any) -> None:
        """Count as stored with these columns; for a row that a statement of our own inserted."""
        for name, value in found.items():
            setattr(self, name, value)
        self._state.adding, self._state.db = False, conf.DATABASE
        self._remember_guarded()

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
        announce_after_commit(self.uuid, self.agent, event, data)

    def _move(
        self, to: RunStatus, kind: EventKind, *, actor: str, data: dict[str, Any], **columns: Any
    ) -> None:
        """Change the status of this locked row, and write that into the history.

        Raises:
            TransitionRefused: no such move.
        """
        if to not in ALLOWED_MOVES[RunStatus(self.status)]:
            raise TransitionRefused(f"run {self.uuid} is {self.status}; it can't become {to}")
        self._write(**move_columns(to, columns))
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
        doubtful = self.journal().unresolved_writes().order_by("-pk").values_list("pk", flat=True)
        return standing_fence(self.pending_effect, self.pending_step_id, doubtful.first)

    def _refuse_fence(self) -> None:
        fence, _attempt = self.standing_fence()
        if fence:
            raise TransitionRefused(f"run {self.uuid}: the fence stands ({fence})")

    # The reaper's.

    def reap(self) -> Verdict:
        """Apply the verdict to this stale row, which `lock_stale()` has locked and judged."""
        self.add_event(
            EventKind.LEASE_LOST, actor=self.claimed_by, **lease_lost(self.lease_expires_at)
        )
        return self._stop(None, actor=REAPER, error_message=ran_out(self.claimed_by))

    @property
    def error_text(self) -> str:
        """The class and the text of the error that it failed with; '' where there is none."""
        return ": ".join(part for part in (self.error_class, self.error_message) if part)

    @property
    def is_executable_again(self) -> bool:
        return is_executable_again(self.mode, has_request=self.has_stored_request)

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

    def _stop(
        self,
        failure: Failure | None,
        *,
        actor: str,
        uncertain: Step | None = None,
        ending: Ending | None = None,
        **details: Any,
    ) -> Verdict:
        verdict = self.verdict(failure)
        end = after_stop(
            verdict, self.requeue_count, self.standing_fence(), failure=failure, **details
        )
        said: dict[str, Any] = {}
        if uncertain is not None and uncertain.pk == end.uncertain_attempt:
            said = {"error": details["error_message"]}
            if ending is not None and ending.outcome is StepOutcome.RAISED:
                said = raised_columns(ending)
        self._become(end, actor, said)
        return verdict

    def _become(self, end: Stopped, actor: str, said: dict[str, Any] | None = None) -> None:
        if end.uncertain_attempt is not None:
            mark_uncertain([end.uncertain_attempt], **(said or {}))
        columns = dict(end.columns)
        if end.delay is not None:
            columns["available_at"] = from_now(end.delay)
        self._move(end.status, end.kind, actor=actor, data=end.data, **columns)

    def _settle_cancelled(self, actor: str) -> None:
        if self.status == RunStatus.FAILED:
            raise TransitionRefused(f"run {self.uuid} has failed; it can't be cancelled")
        self._become(cancelled(), actor)
