from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models.functions import Now

from ..conf import conf
from ..deciders import RETRY, identity_of, name_of
from ..enums import TERMINAL, WAITING, EventKind, RunMode, RunStatus, StepKind, StepOutcome
from ..exceptions import PayloadUnreadable, TransitionRefused
from ..fields import Payload, storable
from ..redaction import told
from ..verdict import may_retry_after_fence, same_name
from .row import NO_FAILURE, RunRow
from .step import Ending, recorded_columns
from .stopping import NO_FENCE

if TYPE_CHECKING:
    from ..deciders import Decider


ANSWERED_BY = {
    StepKind.APPROVAL: "this is an approval: give --approve or --deny, or call decide()",
    StepKind.INPUT: "this is a question: give --answer, or call submit_input()",
}


class PersonTransitions(RunRow):
    """What a person does to a run, but for the verdict on an interrupted write."""

    class Meta:
        abstract = True

    def cancel(self, *, by: str) -> RunStatus:
        """Cancel: at once where no fence stands, else after the write in flight is recorded.

        Cancelling a cancelled run changes nothing. A queued or waiting run whose journal holds an
        unresolved write is dead-lettered instead, as a claim would. Returns the status that the run
        then has.

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
            if row.status not in TERMINAL and not may_retry_after_fence(fence):
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

    def retry(self, *, by: Decider, reason: str = "") -> None:
        """Execute a dead-lettered run again, from its journal, with a new budget.

        Raises:
            TransitionRefused: it is not FAILED, has no stored request, a write of it is uncertain, or
                the user has no permission.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            who = identity_of(by, RETRY)["by"]
            fence, _attempt = row.standing_fence()
            if row.status != RunStatus.FAILED or not may_retry_after_fence(fence):
                raise TransitionRefused(
                    f"run {self.uuid} is {row.status} with fence {fence!r}; only a failed run whose "
                    "writes are all certain can be retried"
                )
            row._leave_failed(EventKind.RETRIED, who, {"why": told(reason)})

    def _leave_failed(
        self,
        kind: EventKind,
        by: str,
        data: dict[str, Any],
        *,
        requeue_count: int = 0,
        **columns: Any,
    ) -> None:
        self._refuse_without_request()
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

    def _refuse_without_request(self) -> None:
        if not self.has_stored_request:
            raise TransitionRefused(f"run {self.uuid} has no stored request to execute again")

    def answer(self, key: str, answer: Payload, *, by: str, digest: str | None = None) -> None:
        """Record a person's answer to an open question; the last one queues the run.

        `digest` is that of the question that was shown; None answers whatever is asked now.

        Raises:
            TransitionRefused: the run does not wait for this step's input, it was given already, or
                the question can't be read.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            row._refuse_unreadable(key)
            row._record_answer(key, StepKind.INPUT, digest, answer)
            row._answered(EventKind.ANSWERED, by, {"step": key})

    def decide(self, key: str, approved: bool, *, by: Decider, digest: str, note: str = "") -> None:
        """Record a person's decision on the call that was shown; the last open question queues the run.

        `digest` is that of the call that was shown. Nothing but `approved is True` is a yes. A user
        must have the permission now, and still when the write that is allowed is stamped. A call whose
        arguments can't be read may be denied.

        Raises:
            TransitionRefused: the run does not wait for this decision any more, the call is another
                one, a yes is to what can't be read, the user has no permission, or the person asked for the run and may not approve it.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            who = name_of(by)
            asked_for_it = same_name(who, row.requested_by)
            if approved is True and asked_for_it and not conf.REQUESTER_MAY_APPROVE:
                raise TransitionRefused(f"{who} asked for run {self.uuid} and may not approve it")
            if approved is True:
                row._refuse_unreadable(key)
            decision = {"approved": approved is True, **identity_of(by), "note": storable(note)}
            row._record_answer(key, StepKind.APPROVAL, digest, Payload.of(decision))
            kind = EventKind.GRANTED if approved is True else EventKind.DENIED
            row._answered(kind, who, {"step": key, "note": told(note)})

    def _refuse_unreadable(self, key: str) -> None:
        """Refuse an answer to what nobody can have read: it was damaged, or its key is missing."""
        question = self.journal().open_questions().filter(key=key).first()
        arguments = question.arguments if question is not None else None
        try:
            _ = arguments.value if arguments is not None else None
        except PayloadUnreadable as error:
            raise TransitionRefused(f"what step {key!r} asks can't be read: {error}") from error

    def _record_answer(self, key: str, kind: StepKind, digest: str | None, answer: Payload) -> None:
        if self.status not in WAITING:
            raise TransitionRefused(f"run {self.uuid} is {self.status}; it waits for nobody")
        question = self.journal().open_questions().filter(key=key, kind=kind)
        if digest is not None:
            question = question.filter(digest=digest)
        if not question.update(**recorded_columns(key, Ending(StepOutcome.RETURNED, answer))):
            raise TransitionRefused(f"run {self.uuid} {self._why_not_asked(key, kind)}")

    def _why_not_asked(self, key: str, kind: StepKind) -> str:
        """Say why this run does not wait for such an answer to this step, as it was shown."""
        asked = dict(self.journal().open_questions().order_by("pk").values_list("key", "kind"))
        if asked.get(key) == kind:
            return f"does not wait for {key!r} as it was shown: it has changed; look at it again"
        if key in asked:
            return f"waits at {key!r} for another answer: {ANSWERED_BY[StepKind(asked[key])]}"
        return f"does not wait for {key!r} (any more); it waits for: {', '.join(map(repr, asked))}"

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
