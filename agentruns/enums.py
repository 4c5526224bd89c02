from __future__ import annotations

from typing import NoReturn

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class RunStatus(TextChoices):
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    WAITING_FOR_APPROVAL = "waiting_for_approval", _("waiting for approval")
    WAITING_FOR_INPUT = "waiting_for_input", _("waiting for input")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


WAITING = frozenset({RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT})
TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})

ALLOWED_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.QUEUED, *WAITING, *TERMINAL}),
    # With several questions open, an approval shows first; what is left may be for input.
    RunStatus.WAITING_FOR_APPROVAL: frozenset(
        {RunStatus.QUEUED, RunStatus.WAITING_FOR_INPUT, RunStatus.CANCELLED, RunStatus.FAILED}
    ),
    RunStatus.WAITING_FOR_INPUT: frozenset(
        {RunStatus.QUEUED, RunStatus.CANCELLED, RunStatus.FAILED}
    ),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset({RunStatus.QUEUED}),
    RunStatus.CANCELLED: frozenset(),
}


class RunMode(TextChoices):
    QUEUED = "queued", _("queued")
    SYNCHRONOUS = "synchronous", _("synchronous")


class TerminationReason(TextChoices):
    COMPLETED = "completed", _("completed")
    MAX_ITERATIONS = "max_iterations", _("too many rounds")
    BUDGET_EXHAUSTED = "budget_exhausted", _("budget exhausted")
    POLICY_DENIED = "policy_denied", _("denied by policy")
    APPROVAL_DENIED = "approval_denied", _("approval denied")
    PROVIDER_FAILED = "provider_failed", _("provider failed")
    CANCELLED = "cancelled", _("cancelled")
    RETRIES_EXHAUSTED = "retries_exhausted", _("retries exhausted")
    NOT_RETRYABLE = "not_retryable", _("not retryable")
    INTERRUPTED_WRITE = "interrupted_write", _("interrupted write")


# The reasons of a run that failed.
FAILURES = tuple(
    reason
    for reason in TerminationReason
    if reason not in (TerminationReason.COMPLETED, TerminationReason.CANCELLED)
)


class ToolEffect(TextChoices):
    READ_ONLY = "read_only", _("read only")
    IDEMPOTENT_WRITE = "idempotent_write", _("idempotent write")
    NON_IDEMPOTENT_WRITE = "non_idempotent_write", _("non-idempotent write")
    TRANSACTIONAL_WRITE = "transactional_write", _("transactional write")

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"{value!r} is no effect: use one of {', '.join(cls.values)}")


FENCED_EFFECTS = frozenset({ToolEffect.IDEMPOTENT_WRITE, ToolEffect.NON_IDEMPOTENT_WRITE})


class StepKind(TextChoices):
    MODEL = "model", _("model request")
    TOOL = "tool", _("tool call")
    CALL = "call", _("call")
    APPROVAL = "approval", _("approval")
    INPUT = "input", _("input")


class StepState(TextChoices):
    STARTED = "started", _("started")
    RECORDED = "recorded", _("recorded")
    NOT_APPLIED = "not_applied", _("not applied")
    UNCERTAIN = "uncertain", _("uncertain")


QUESTIONS = frozenset({StepKind.APPROVAL, StepKind.INPUT})


class StepOutcome(TextChoices):
    """How a step's body ended. The first three can be recorded; a replay gives them back."""

    RETURNED = "returned", _("returned a value")
    EFFECT_NOT_APPLIED = "effect_not_applied", _("said that nothing happened")
    LANDED_WITHOUT_RESULT = "landed_without_result", _("landed, its result could not be kept")
    RAISED = "raised", _("raised an error")
    NOT_STARTED = "not_started", _("did not start")


RECORDABLE = frozenset(
    {StepOutcome.RETURNED, StepOutcome.EFFECT_NOT_APPLIED, StepOutcome.LANDED_WITHOUT_RESULT}
)


class Resolution(TextChoices):
    HAPPENED = "happened", _("it happened")
    DID_NOT_HAPPEN = "did_not_happen", _("it did not happen")
    LEFT = "left", _("left as it is")


class Testimony(TextChoices):
    """What a destination says about a write when it is asked.

    A verifier gives one of the first three. A 'not landed' counts as too early where the former
    worker could still act when it was said.
    """

    LANDED = "landed", _("it landed")
    NOT_LANDED = "not_landed", _("it did not land")
    UNKNOWN = "unknown", _("it does not know")
    TOO_EARLY = "too_early", _("it had not landed, too early to count: its worker could still act")


# What is asked again.
UNANSWERED = frozenset({Testimony.UNKNOWN, Testimony.TOO_EARLY})


class FailureClass(TextChoices):
    TRANSIENT = "transient", _("transient")
    RATE_LIMITED = "rate_limited", _("rate limited")
    AUTHENTICATION = "authentication", _("authentication")
    CONFIGURATION = "configuration", _("configuration")
    CLIENT_ERROR = "client_error", _("client error")
    UNKNOWN = "unknown", _("unknown")


RETRYABLE_FAILURES = frozenset({FailureClass.TRANSIENT, FailureClass.RATE_LIMITED})


class EventKind(TextChoices):
    QUEUED = "queued", _("queued")
    WOKEN = "woken", _("woken by a person")
    CLAIMED = "claimed", _("claimed")
    DECLINED = "declined", _("declined: that worker does not serve it")
    MOVED = "moved", _("moved to another version")
    LEASE_LOST = "lease_lost", _("lease lost")
    GIVEN_BACK = "given_back", _("given back")
    REQUEUED = "requeued", _("requeued")
    DEAD_LETTERED = "dead_lettered", _("dead-lettered")
    COMPLETED = "completed", _("completed")
    CANCEL_ASKED = "cancel_asked", _("cancel asked")
    CANCELLED = "cancelled", _("cancelled")
    APPROVAL_ASKED = "approval_asked", _("approval asked")
    INPUT_ASKED = "input_asked", _("input asked")
    PARKED = "parked", _("parked")
    GRANTED = "granted", _("approval granted")
    DENIED = "denied", _("approval denied")
    APPROVAL_VOID = "approval_void", _("approval void: asked again")
    ANSWERED = "answered", _("input given")
    VERIFIED = "verified", _("verified")
    RESOLUTION_PROPOSED = "resolution_proposed", _("verdict proposed")
    RESOLVED = "resolved", _("resolved")
    RETRIED = "retried", _("retried by a person")
    LATE_EVIDENCE = "late_evidence", _("late evidence")
