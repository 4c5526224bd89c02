from __future__ import annotations

from pydantic_ai.exceptions import (
    ConcurrencyLimitExceeded,
    ContentFilterError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
    OutputTokenLimitExceeded,
    RunCancelled,
    RunTimedOut,
    SuspendedResponseExpired,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)

from agentruns.enums import RETRYABLE_FAILURES, FailureClass, TerminationReason
from agentruns.failures import Failure, class_of_http_status, classify

from .exceptions import (
    AgentRefused,
    PolicyDenied,
    RequestRefused,
    ResultNotStorable,
    UnclearOutcome,
)

PROVIDER = TerminationReason.PROVIDER_FAILED

# In order: the first row that matches holds.
RULES: tuple[tuple[type[BaseException], FailureClass, TerminationReason | None], ...] = (
    (ModelRateLimitError, FailureClass.RATE_LIMITED, PROVIDER),
    (ModelQuotaExceededError, FailureClass.CLIENT_ERROR, PROVIDER),
    (ModelUnavailableError, FailureClass.TRANSIENT, PROVIDER),
    (ModelServerError, FailureClass.TRANSIENT, PROVIDER),
    (ModelConnectionError, FailureClass.TRANSIENT, PROVIDER),
    (ModelRequestTimeout, FailureClass.TRANSIENT, PROVIDER),
    (ModelAuthenticationError, FailureClass.AUTHENTICATION, PROVIDER),
    (ModelRequestRejectedError, FailureClass.CLIENT_ERROR, PROVIDER),
    (ConcurrencyLimitExceeded, FailureClass.RATE_LIMITED, None),
    (ContentFilterError, FailureClass.CLIENT_ERROR, TerminationReason.POLICY_DENIED),
    (OutputTokenLimitExceeded, FailureClass.CLIENT_ERROR, TerminationReason.BUDGET_EXHAUSTED),
    (SuspendedResponseExpired, FailureClass.TRANSIENT, PROVIDER),
    (RunTimedOut, FailureClass.CLIENT_ERROR, TerminationReason.BUDGET_EXHAUSTED),
    (RunCancelled, FailureClass.CLIENT_ERROR, None),
    (UserError, FailureClass.CONFIGURATION, None),
    (AgentRefused, FailureClass.CONFIGURATION, None),
    (PolicyDenied, FailureClass.CLIENT_ERROR, TerminationReason.POLICY_DENIED),
    (RequestRefused, FailureClass.CLIENT_ERROR, None),
    (ResultNotStorable, FailureClass.CLIENT_ERROR, None),
)


def classify_agent_failure(error: BaseException) -> Failure | None:
    """Say what an error of Pydantic AI means for the verdict, or None if it is not one of its."""
    if isinstance(error, FallbackExceptionGroup):
        return _of_group(error)
    if isinstance(error, UsageLimitExceeded):
        return _of_usage(error)
    if isinstance(error, UnclearOutcome):
        return _of_unclear(error)
    for kind, failure_class, reason in RULES:
        if isinstance(error, kind):
            return Failure(failure_class, reason, getattr(error, "retry_after", None))
    if isinstance(error, ModelHTTPError):
        return Failure(class_of_http_status(error.status_code), PROVIDER, error.retry_after)
    if isinstance(error, ModelAPIError):
        return Failure(FailureClass.TRANSIENT, PROVIDER, error.retry_after)
    if isinstance(error, UnexpectedModelBehavior):
        return _of_behaviour(error)
    return None


def _of_usage(error: UsageLimitExceeded) -> Failure:
    rounds = "request_limit" in str(error)
    reason = TerminationReason.MAX_ITERATIONS if rounds else TerminationReason.BUDGET_EXHAUSTED
    return Failure(FailureClass.CLIENT_ERROR, reason)


def _of_behaviour(error: UnexpectedModelBehavior) -> Failure:
    """The model went on answering what could not be used, or answered once what nobody can use."""
    said = str(error).lower()
    rounds = "exceeded max retries" in said or "exceeded maximum output retries" in said
    return Failure(FailureClass.CLIENT_ERROR, TerminationReason.MAX_ITERATIONS if rounds else None)


def _of_unclear(error: UnclearOutcome) -> Failure:
    """An idempotent write that said 'again' may have lost its connection: it is repeated."""
    again = error.kind in {"model_retry", "run_cancelled"}
    return Failure(FailureClass.TRANSIENT if again else FailureClass.CLIENT_ERROR)


def _of_group(group: FallbackExceptionGroup) -> Failure:
    """Every model of a fallback failed: one that may recover is enough to try again."""
    failures = [classify(error) for error in group.exceptions]
    waiting = [one for one in failures if one.failure_class in RETRYABLE_FAILURES]
    return min(waiting, key=lambda one: one.retry_after_seconds or 0) if waiting else failures[-1]
