from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now

from ..conf import conf
from ..deciders import why_not
from ..digests import new_key
from ..enums import (
    EventKind,
    RunMode,
    RunStatus,
    StepKind,
    StepState,
    TerminationReason,
    ToolEffect,
)
from ..exceptions import (
    ApprovalVoid,
    CancelRequested,
    LeaseLost,
    PayloadUnreadable,
    TransitionRefused,
)
from ..failures import Failure
from ..fields import Payload
from ..guard import Claim, new_lease
from ..raised import class_name
from ..redaction import told
from ..verdict import Action, Verdict, may_retry_after_fence
from .row import RunRow
from .step import UNRESOLVED_WRITE, Ending, Step, StepCall, moment_of, recorded_columns
from .stopping import NO_FENCE, dead_lettered


class WorkerTransitions(RunRow):
    """What a segment does to the run that it has claimed."""

    class Meta:
        abstract = True

    def take(self, owner: str) -> Claim | None:
        """Claim this locked, due row; dead-letter it if its journal holds an unresolved write."""
        fence, _attempt = self.standing_fence()
        if not may_retry_after_fence(fence):
            self._stop(None, actor=owner)
            return None
        keyed = {"digest_key": new_key()} if self.claim_epoch == 0 else {}
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
            **keyed,
            waits_for_slot=False,
        )
        return claim

    def wait_for_slot(self) -> None:
        """Put this locked row in line: its agent has as many runs as it may have at a time."""
        if not self.waits_for_slot:
            self._write(waits_for_slot=True)
        self.waits_for_slot = True

    def decline(self, owner: str, served: str | None) -> None:
        """Write down that this worker leaves the locked run to others; its state does not change.

        `served` is the version of the agent that it has; None where it does not have the agent. What
        another worker has said since the run is due is not said again: it is woken for ever.
        """
        said: dict[str, Any] = {"wants": self.agent_version, "serves": served}
        declined = self.history().filter(kind=EventKind.DECLINED, at__gte=self.available_at)
        if not any(event.details == said for event in declined.order_by("-pk")[:SAID_BEFORE]):
            self.add_event(EventKind.DECLINED, actor=owner, **said)

    def renew(self, claim: Claim) -> None:
        """Let the lease begin anew.

        Raises:
            LeaseLost: the run is not this segment's any more; nothing changed.
        """
        with self._held(claim) as row:
            row._write(lease_expires_at=new_lease())

    def mark_pending_effect(
        self, claim: Claim, call: StepCall, approval_key: str | None = None
    ) -> Step:
        """Stamp the fence: effect, attempt and lease in one committed write, before the body (ADR-112).

        If the process dies after this, the run is known to have stopped inside this write.
        `approval_key` names the decision that allows the write; it is used up in the same transaction.

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
            known = list(
                row.journal().without_payloads().filter(Q(key=call.key) | UNRESOLVED_WRITE)
            )
            if any(step.state == StepState.RECORDED for step in known):
                raise TransitionRefused(f"step {call.key} of run {self.uuid} is recorded already")
            if row.pending_effect or any(step.is_unresolved_write for step in known):
                raise TransitionRefused(f"run {self.uuid}: a fence stands; one write at a time")
            landed = [step for step in known if step.landed_late]
            if landed and not may_retry_after_fence(call.effect):
                end = dead_lettered(
                    TerminationReason.INTERRUPTED_WRITE,
                    (ToolEffect.NON_IDEMPOTENT_WRITE, landed[-1].pk),
                    error_message="an earlier attempt of this write reports that it landed",
                )
                row._become(end, claim.owner)
                step = None
            else:
                if approval_key is not None:
                    row.use_approval(claim, call, approval_key)
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
                self.journal()
                .filter(key=key, epoch=claim.epoch, owner=claim.owner)
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
                recorded["started_at"] = moment_of(ending.began)
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

    def add_late_evidence(self, claim: Claim, step: Step, ending: Ending) -> None:
        """Write down how a write ended whose segment has lost the run; its state does not change.

        Raises:
            RunNotFound: the run was deleted; there is nothing left to write it to.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            own = Step.objects.filter(pk=step.pk, epoch=claim.epoch, owner=claim.owner)
            recorded = own.filter(state=StepState.RECORDED, outcome=ending.outcome).first()
            # What was recorded as this very ending is no news; what a person said may be wrong.
            if recorded is not None and is_same(recorded.result, ending.result):
                return
            written = own.filter(late_at__isnull=True).update(
                late_outcome=ending.outcome,
                late_result=ending.result,
                late_error=told(ending.error),
                late_at=Now(),
            )
            if written:
                row.add_event(
                    EventKind.LATE_EVIDENCE,
                    actor=claim.owner,
                    epoch=claim.epoch,
                    step=step.key,
                    outcome=str(ending.outcome),
                )

    def ask(self, claim: Claim, question: StepCall) -> None:
        """Put a question to a person into the journal; the run goes on until it is suspended.

        A question that is open already is not asked twice; one whose digest has changed replaces it.

        Raises:
            LeaseLost: the run is not this segment's any more.
        """
        with self._held(claim) as row:
            former = row.journal().filter(key=question.key)
            if former.filter(state=StepState.STARTED, digest=question.digest).exists():
                return
            former.filter(state=StepState.STARTED).update(state=StepState.NOT_APPLIED)
            attempt = former.count() + 1
            Step.of(row, claim, question, attempt, state=StepState.STARTED).save(force_insert=True)
            row.add_event(ASKED[question.kind], actor=claim.owner, step=question.key)

    def suspend(self, claim: Claim) -> None:
        """Park the run until its open questions are answered; it then goes on in the background.

        Raises:
            LeaseLost: the run is not this segment's any more.
            CancelRequested: somebody asked to cancel.
            TransitionRefused: a fence stands, or no question is open.
        """
        with self._held(claim) as row:
            if row.cancel_requested_at is not None:
                raise CancelRequested(f"run {self.uuid}: a cancel was requested")
            row._refuse_fence()
            waiting = row.waiting_status()
            if waiting is None:
                raise TransitionRefused(f"run {self.uuid} has no open question to wait for")
            row._move(waiting, EventKind.PARKED, actor=claim.owner, data={}, mode=RunMode.QUEUED)

    def use_approval(self, claim: Claim, call: StepCall, approval_key: str) -> None:
        """Take up the decision that allows `call`, in the transaction that stamps its fence.

        Raises:
            TransitionRefused: there is no explicit yes for this very call, or it was used up.
            ApprovalVoid: the user who gave it may not decide any more.
        """
        decision = self.journal().filter(recorded_key=approval_key).first()
        granted = (
            decision is not None
            and decision.digest == call.digest
            and decision.result is not None
            and decision.result.value.get("approved") is True
        )
        if decision is None or not granted:
            raise TransitionRefused(f"step {call.key} of run {self.uuid} was not approved as it is")
        if decision.used_at is not None and conf.APPROVAL_PER_ATTEMPT:
            raise TransitionRefused(f"the approval of step {call.key} has been used up")
        if decision.result is not None and (why := why_not(decision.result.value)):
            raise ApprovalVoid(approval_key, why)
        Step.objects.filter(pk=decision.pk).update(used_at=Now())

    def withdraw_approval(self, claim: Claim, void: ApprovalVoid) -> None:
        """Take a decision out of the journal that does not hold any more, so that it is asked again.

        The decision stays readable as an attempt that was not applied; the history says why.

        Raises:
            LeaseLost: the run is not this segment's any more.
        """
        with self._held(claim) as row:
            row.journal().filter(recorded_key=void.key).update(
                state=StepState.NOT_APPLIED, recorded_key=None
            )
            row.add_event(
                EventKind.APPROVAL_VOID, actor=claim.owner, step=void.key, why=told(void.why)
            )

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
        ending: Ending | None = None,
        worker_ended: bool = True,
    ) -> Verdict:
        """Apply the verdict to a run whose segment failed and still owns it.

        `uncertain` is the attempt whose body ended without saying what happened, and `ending` how it
        did; `worker_ended` is false where something of that body may go on unseen.

        Raises:
            LeaseLost: the run is not this segment's any more; nothing changed.
        """
        with self._held(claim) as row:
            return row._stop(
                failure,
                actor=claim.owner,
                error_class=class_name(error),
                error_message=told(error),
                uncertain=uncertain,
                ending=ending,
                worker_ended=worker_ended,
            )


# How many of the last refusals are looked through; there are as many as versions in use.
SAID_BEFORE = 20

ASKED = {
    StepKind.APPROVAL: EventKind.APPROVAL_ASKED,
    StepKind.INPUT: EventKind.INPUT_ASKED,
}


def is_same(stored: Payload | None, given: Payload | None) -> bool:
    """Whether both are the same value; a stored one that can't be read is not."""
    if stored is None or given is None:
        return stored is given
    try:
        return stored.as_json == given.as_json
    except PayloadUnreadable:
        return False


def flush_commits() -> None:
    """Have this transaction's commit reach the disk, where the server was told not to wait for it."""
    connection = connections[conf.DATABASE]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
