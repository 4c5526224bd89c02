from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from ..conf import conf
from ..deciders import RESOLVE, identity_of, name_of, why_not
from ..enums import EventKind, Resolution, RunStatus, StepOutcome, StepState, Testimony
from ..exceptions import TransitionRefused
from ..fields import Payload, label
from ..guard import from_now
from ..redaction import told
from ..verdict import Opinion, Weight, may_retry_after_fence, same_name, weigh
from .event import Event
from .person import PersonTransitions
from .step import Ending, Step, recorded_columns

if TYPE_CHECKING:
    from ..deciders import Decider


@dataclass(frozen=True, slots=True)
class Proposal:
    """A first person's verdict, which a second person has to give, too."""

    opinion: Opinion
    why: str
    at: datetime

    @classmethod
    def of(cls, event: Event) -> Proposal | None:
        """Read it from the history; None where the event was damaged."""
        try:
            data = event.details
            said = Opinion(
                event.actor,
                Resolution(data["verdict"]),
                data["state"],
                data["result"],
                data["user"],
            )
            return cls(said, data["why"], event.at)
        except (KeyError, ValueError):
            return None


def sealed(result: Payload | None) -> str:
    """What the history keeps of a proposed result: equal for equal ones, and tells nobody more.

    A plain digest would let somebody who may not see payloads try values until one fits.
    """
    if result is None:
        return ""
    return salted_hmac("agentruns.proposal", result.digest, algorithm="sha256").hexdigest()


class ResolutionTransitions(PersonTransitions):
    """What a person's verdict, or that of a destination that was asked, does to a run in doubt."""

    class Meta:
        abstract = True

    def resolution_digest(self) -> str:
        """A digest of what a verdict is based on: status, epoch, attempt, evidence, testimony."""
        _effect, attempt = self.standing_fence()
        step = Step.objects.without_payloads().filter(pk=attempt).first()
        facts = [self.status, self.claim_epoch, self.resolution, attempt]
        if step is not None:
            facts += [step.state, step.late_outcome, step.late_error, step.testimony]
        return hashlib.sha256(repr([str(fact) for fact in facts]).encode()).hexdigest()

    def last_proposal(self) -> Proposal | None:
        """The last verdict that was proposed for this run, whether or not it still counts."""
        proposed = self.history().filter(kind=EventKind.RESOLUTION_PROPOSED)
        event = proposed.order_by("-pk").first()
        return Proposal.of(event) if event else None

    def testimony_note(self) -> str:
        """What the destination added to its last testimony."""
        event = self.history().filter(kind=EventKind.VERIFIED).order_by("-pk").first()
        return str(event.details.get("note", "")) if event else ""

    def former_worker_may_act(self) -> bool:
        """Whether a worker that left the write in doubt, or an earlier attempt at it, may still act."""
        return self.former_worker_may_act_until() is not None

    def former_worker_may_act_until(self) -> datetime | None:
        """Until when such a worker may still act; None where all of them count as gone.

        One acts no more where it is known to be gone or reported later how its body came back; else
        MAX_STEP_SECONDS after the run was dead-lettered, which is after its lease ended. A verdict on
        an attempt ends no worker, so that every earlier attempt is judged, too.
        """
        _effect, doubtful = self.standing_fence()
        step = Step.objects.without_payloads().filter(pk=doubtful).first()
        if step is None:
            return self._left_lately(self._dead_letters().order_by("-pk").first())
        attempts = self.journal().without_payloads().filter(key=step.key, effect=step.effect)
        until = [self._may_act_until(attempt) for attempt in attempts]
        return max((at for at in until if at is not None), default=None)

    def _dead_letters(self) -> models.QuerySet[Event]:
        return self.history().filter(kind=EventKind.DEAD_LETTERED)

    def _may_act_until(self, attempt: Step) -> datetime | None:
        if attempt.came_back_late:
            return None
        after = self._dead_letters().filter(epoch__gte=attempt.epoch)
        left = after.order_by("epoch", "-pk").first()
        if left is not None and left.epoch == attempt.epoch and left.details.get("worker_ended"):
            return None
        return self._left_lately(left)

    def _left_lately(self, left: Event | None) -> datetime | None:
        """When the longest step that is allowed will be over since this dead letter; None if it is."""
        if left is None:
            return None
        longest = timedelta(seconds=conf.MAX_STEP_SECONDS)
        lately = self.history().filter(pk=left.pk, at__gt=from_now(-longest))
        at: datetime | None = lately.values_list("at", flat=True).first()
        return None if at is None else at + longest

    def resolve(
        self,
        verdict: Resolution,
        *,
        by: Decider,
        reason: str,
        digest: str,
        result: Payload | None = None,
        worker_may_act_confirmed: bool = False,
        by_destination: bool = False,
    ) -> Weight:
        """Give a verdict on the interrupted write of a dead-lettered run.

        HAPPENED records `result` as the step and lets the run go on; DID_NOT_HAPPEN lets the write be
        executed again with the same idempotency key; LEFT closes it as it is. `digest` is the
        `resolution_digest()` of the state that the verdict is based on. Where
        RESOLVE_NEEDS_SECOND_PERSON, a person's verdict only proposes, until another person gives the
        same one on the same state; the result says which it was. A user, not a label, must have the
        permission now, and still when the second person comes. A person's verdict gives the run a
        new budget. A destination's takes effect alone, and its DID_NOT_HAPPEN spends a retry, or a
        run that kills its worker in the write each time would never end.

        Raises:
            ValueError: `verdict` is none.
            TransitionRefused: nobody or no reason is named, the user has no permission, the state has moved on, there is no
                interrupted write, a result is missing or is one too many, 'it did not happen'
                while the former worker may still act, a destination's verdict on a run whose retries are spent, or the
                person may not be the second one.
        """
        verdict = Resolution(verdict)
        who = label(name_of(by), "by")
        if not who.strip() or not reason.strip():
            raise TransitionRefused("a verdict needs who gives it and the reason: how they know")
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            step = row._step_in_doubt(digest)
            row._refuse_verdict(verdict, step, result, worker_may_act_confirmed)
            spent = row._spent_by(verdict) if by_destination else 0
            said: dict[str, Any] = {"verdict": str(verdict), "why": told(reason)}
            if not by_destination:
                user = identity_of(by, RESOLVE).get("user", "")
                given = Opinion(who, verdict, digest, sealed(result), user)
                weight, more = row._weigh(given)
                said |= more
                if weight is not Weight.TAKES_EFFECT:
                    row.add_event(EventKind.RESOLUTION_PROPOSED, actor=who, **said)
                    return weight
            row._apply_resolution(verdict, step, who, said, result, spent)
            return Weight.TAKES_EFFECT

    def _step_in_doubt(self, digest: str) -> Step | None:
        """The attempt that this locked row's fence stands for, in the state that was shown."""
        effect, attempt = self.standing_fence()
        if self.status != RunStatus.FAILED or may_retry_after_fence(effect):
            raise TransitionRefused(f"run {self.uuid} has no interrupted write to resolve")
        if self.resolution_digest() != digest:
            raise TransitionRefused(
                f"run {self.uuid} has changed since it was shown: look at it again"
            )
        step: Step | None = Step.objects.without_payloads().filter(pk=attempt).first()
        return step

    def _weigh(self, given: Opinion) -> tuple[Weight, dict[str, str]]:
        """What a person's verdict does to this locked row, and what the history says of that."""
        if not conf.RESOLVE_NEEDS_SECOND_PERSON:
            return Weight.TAKES_EFFECT, {}
        last = self.last_proposal()
        proposed = last.opinion if last and not self.why_void(last) else None
        may_second = conf.REQUESTER_MAY_APPROVE or not same_name(given.by, self.requested_by)
        weight = weigh(given, proposed, may_second=may_second)
        if weight is Weight.TAKES_EFFECT and proposed is not None:
            return weight, {"proposed_by": proposed.by}
        return weight, {"state": given.state, "result": given.result, "user": given.user}

    def why_void(self, proposal: Proposal) -> str:
        """Say why a proposal does not count any more; '' where it does."""
        said = proposal.opinion
        if said.state != self.resolution_digest():
            return "the state has changed since"
        return why_not({"by": said.by, "user": said.user or None}, RESOLVE)

    def _spent_by(self, verdict: Resolution) -> int:
        """The retries spent after a destination's verdict: executing a write again spends one."""
        if verdict is Resolution.HAPPENED:
            return self.requeue_count
        if self.requeue_count >= conf.MAX_REQUEUES:
            raise TransitionRefused(f"run {self.uuid} has spent its retries: a person decides")
        return self.requeue_count + 1

    def _refuse_verdict(
        self,
        verdict: Resolution,
        step: Step | None,
        result: Payload | None,
        worker_may_act_confirmed: bool,
    ) -> None:
        """Refuse what can't be done, also where it is only proposed."""
        if verdict is not Resolution.HAPPENED and result is not None:
            raise TransitionRefused(
                "a result says that the write happened, and the verdict does not"
            )
        if verdict is Resolution.LEFT:
            return
        self._refuse_without_request()
        if verdict is Resolution.HAPPENED:
            if step is None:
                raise TransitionRefused("there is no attempt in the journal that could be recorded")
            if result is None:
                raise TransitionRefused("'it happened' needs the result that the step returned")
        elif not worker_may_act_confirmed:
            self._refuse_while_worker_may_act()

    def _refuse_while_worker_may_act(self) -> None:
        until = self.former_worker_may_act_until()
        if until is not None:
            at = until.isoformat(sep=" ", timespec="seconds")
            raise TransitionRefused(
                f"the former worker may still be inside the write: wait until {at}, when the longest "
                "step (MAX_STEP_SECONDS) is over, or confirm that it may still act "
                "(worker_may_act_confirmed=True, or --worker-may-act)"
            )

    def _apply_resolution(
        self,
        verdict: Resolution,
        step: Step | None,
        by: str,
        said: dict[str, Any],
        result: Payload | None,
        requeue_count: int,
    ) -> None:
        if verdict is Resolution.LEFT:
            self._write(resolution=verdict, resolved_at=Now(), resolved_by=by)
            self.add_event(EventKind.RESOLVED, actor=by, **said)
            return
        if step is not None:
            decided: dict[str, Any] = {"state": StepState.NOT_APPLIED}
            if verdict is Resolution.HAPPENED:
                decided = recorded_columns(step.key, Ending(StepOutcome.RETURNED, result))
            # When it ended is not known: people were waited for meanwhile.
            Step.objects.filter(pk=step.pk).update(**decided | {"ended_at": None})
        self._leave_failed(
            EventKind.RESOLVED,
            by,
            said | {"step": step.key if step else ""},
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
                note=told(note),
            )
