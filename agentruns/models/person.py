from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from ..conf import conf
from ..enums import (
    WAITING,
    EventKind,
    Resolution,
    RunMode,
    RunStatus,
    StepKind,
    StepOutcome,
    StepState,
    Testimony,
)
from ..exceptions import TransitionRefused
from ..fields import Payload, label, storable
from ..guard import from_now
from ..verdict import may_retry_after_fence
from .row import NO_FAILURE, NO_FENCE, RunRow
from .step import Ending, Step, recorded_columns


class PersonTransitions(RunRow):
    """What a person (or a destination that was asked) does to a run."""

    class Meta:
        abstract = True

    def cancel(self, *, by: str) -> RunStatus:
        """Cancel: at once where no fence stands, else after the write in flight is recorded.

        Cancelling a cancelled run changes nothing. A queued run whose journal holds an unresolved
        write is dead-lettered instead, as a claim would. Returns the status that the run then has.

        Raises:
            TransitionRefused: the run has completed or failed.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status == RunStatus.CANCELLED:
                return RunStatus.CANCELLED
            fence, _attempt = row.standing_fence()
            if row.status == RunStatus.RUNNING and fence:
                if row.cancel_requested_at is None:
                    row._write(cancel_requested_at=Now())
                    row.add_event(EventKind.CANCEL_ASKED, actor=by)
                return RunStatus.RUNNING
            if row.status == RunStatus.QUEUED and not may_retry_after_fence(fence):
                row._stop(None, actor=by)
                return RunStatus.FAILED
            row._settle_cancelled(by)
            return RunStatus.CANCELLED

    def mark_woken(self, *, by: str) -> bool:
        """Note that a wake-up is sent for this run. Returns False, changing nothing, if it isn't due."""
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if not type(self).objects.due().filter(pk=row.pk).exists():
                return False
            row._write(woken_at=Now())
            row.add_event(EventKind.WOKEN, actor=by)
            return True

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

    def _leave_failed(
        self,
        kind: EventKind,
        by: str,
        data: dict[str, Any],
        *,
        requeue_count: int = 0,
        **columns: Any,
    ) -> None:
        if not self.has_stored_request:
            raise TransitionRefused(f"run {self.uuid} has no stored request to execute again")
        self._move(
            RunStatus.QUEUED,
            kind,
            actor=by,
            data=data,
            mode=RunMode.QUEUED,
            requeue_count=requeue_count,
            available_at=Now(),
            woken_at=Now(),
            **NO_FAILURE,
            **NO_FENCE,
            **columns,
        )

    def resolution_digest(self) -> str:
        """A digest of what a verdict is based on: status, epoch, attempt, evidence, testimony."""
        _effect, attempt = self.standing_fence()
        step = Step.objects.without_payloads().filter(pk=attempt).first()
        facts = [self.status, self.claim_epoch, self.resolution, attempt]
        if step is not None:
            facts += [step.state, step.late_outcome, step.late_error, step.testimony]
        return hashlib.sha256(repr([str(fact) for fact in facts]).encode()).hexdigest()

    def former_worker_may_act(self) -> bool:
        """Whether the segment that left the fence may still be inside its write.

        It is known to be gone where it ended itself, or MAX_STEP_SECONDS after its lease ended.
        """
        last = self.history().filter(kind=EventKind.DEAD_LETTERED).order_by("-pk").first()
        if last is None or (last.data is not None and last.data.value.get("worker_ended")):
            return False
        gone = timedelta(seconds=conf.MAX_STEP_SECONDS)
        return self.history().filter(pk=last.pk, at__gt=from_now(-gone)).exists()

    def resolve(
        self,
        verdict: Resolution,
        *,
        by: str,
        reason: str,
        digest: str,
        result: Payload | None = None,
        worker_may_act_confirmed: bool = False,
        spends_retry: bool = False,
    ) -> None:
        """Give a verdict on the interrupted write of a dead-lettered run.

        HAPPENED records `result` as the step and lets the run go on; DID_NOT_HAPPEN lets the write be
        executed again with the same idempotency key; LEFT closes it as it is. `digest` is the
        `resolution_digest()` of the state that the verdict is based on. A person's verdict gives the
        run a new budget; a machine's DID_NOT_HAPPEN spends a retry (`spends_retry`), or a run that
        kills its worker in the write each time would never end.

        Raises:
            ValueError: `verdict` is none.
            TransitionRefused: the state has moved on, there is no interrupted write, a result is
                missing, 'it did not happen' while the former worker may still act, or a machine's
                verdict on a run whose retries are spent.
        """
        verdict = Resolution(verdict)
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            effect, attempt = row.standing_fence()
            if row.status != RunStatus.FAILED or may_retry_after_fence(effect):
                raise TransitionRefused(f"run {self.uuid} has no interrupted write to resolve")
            if row.resolution_digest() != digest:
                raise TransitionRefused(
                    f"run {self.uuid} has changed since it was shown: look at it again"
                )
            spent = row._spent_by(verdict) if spends_retry else 0
            row._apply_resolution(
                verdict, attempt, by, reason, result, worker_may_act_confirmed, spent
            )

    def _spent_by(self, verdict: Resolution) -> int:
        """The retries that are spent after a machine's verdict: executing a write again spends one."""
        if verdict is Resolution.HAPPENED:
            return self.requeue_count
        if self.requeue_count >= conf.MAX_REQUEUES:
            raise TransitionRefused(f"run {self.uuid} has spent its retries: a person decides")
        return self.requeue_count + 1

    def _apply_resolution(
        self,
        verdict: Resolution,
        attempt: int | None,
        by: str,
        reason: str,
        result: Payload | None,
        worker_may_act_confirmed: bool,
        requeue_count: int,
    ) -> None:
        data: dict[str, Any] = {"verdict": str(verdict), "why": storable(reason)}
        by = label(by, "by")
        if verdict is Resolution.LEFT:
            self._write(resolution=verdict, resolved_at=Now(), resolved_by=by)
            self.add_event(EventKind.RESOLVED, actor=by, **data)
            return
        step = Step.objects.filter(pk=attempt).first()
        if verdict is Resolution.HAPPENED:
            if step is None:
                raise TransitionRefused("there is no attempt in the journal that could be recorded")
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
        Step.objects.filter(pk=attempt).update(**columns)
        self._leave_failed(
            EventKind.RESOLVED,
            by,
            data | {"step": step.key if step else ""},
            requeue_count=requeue_count,
            resolution="",
            resolved_at=Now(),
            resolved_by=by,
        )

    def add_testimony(self, step: Step, testimony: Testimony, *, actor: str, note: str) -> None:
        """Write down what a destination said about this write in doubt; nothing else changes."""
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            Step.objects.filter(pk=step.pk).update(testimony=testimony)
            row.add_event(
                EventKind.VERIFIED,
                actor=actor,
                step=step.key,
                said=str(testimony),
                note=storable(note),
            )

    def answer(self, key: str, answer: Payload, *, by: str, digest: str | None = None) -> None:
        """Record a person's answer to an open question; the last one queues the run.

        `digest` is that of the question that was shown; None answers whatever is asked now.

        Raises:
            TransitionRefused: the run does not wait for this step's input, or it was given already.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            row._record_answer(key, StepKind.INPUT, digest, answer)
            row._answered(EventKind.ANSWERED, by, {"step": key})

    def decide(self, key: str, approved: bool, *, by: str, digest: str, note: str = "") -> None:
        """Record a person's decision on the call that was shown; the last open question queues the run.

        `digest` is that of the call that was shown. Nothing but `approved is True` is a yes.

        Raises:
            TransitionRefused: the run does not wait for this decision any more, the call is another
                one, or the person asked for the run and may not approve it.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if approved is True and by == row.requested_by and not conf.REQUESTER_MAY_APPROVE:
                raise TransitionRefused(f"{by} asked for run {self.uuid} and may not approve it")
            decision = {"approved": approved is True, "by": by, "note": storable(note)}
            row._record_answer(key, StepKind.APPROVAL, digest, Payload.of(decision))
            kind = EventKind.GRANTED if approved is True else EventKind.DENIED
            row._answered(kind, by, {"step": key, "note": storable(note)})

    def _record_answer(self, key: str, kind: StepKind, digest: str | None, answer: Payload) -> None:
        if self.status not in WAITING:
            raise TransitionRefused(f"run {self.uuid} is {self.status}; it waits for nobody")
        question = self.journal().open_questions().filter(key=key, kind=kind)
        if digest is not None:
            question = question.filter(digest=digest)
        if not question.update(**recorded_columns(key, Ending(StepOutcome.RETURNED, answer))):
            raise TransitionRefused(
                f"run {self.uuid} does not wait for {key!r} as it was shown: it was answered "
                "already, or has changed; look at it again"
            )

    def _answered(self, kind: EventKind, by: str, data: dict[str, Any]) -> None:
        still = self.waiting_status()
        if still == self.status:
            self.add_event(kind, actor=by, **data)
        elif still is not None:
            self._move(still, kind, actor=by, data=data)
        else:
            self._move(
                RunStatus.QUEUED, kind, actor=by, data=data, available_at=Now(), woken_at=Now()
            )
