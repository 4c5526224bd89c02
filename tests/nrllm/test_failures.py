"""The table of failures, a test a row."""

from __future__ import annotations

import pytest
from pydantic_ai import exceptions as errors

from agentruns.enums import FailureClass, TerminationReason
from agentruns.exceptions import WriteFailed
from agentruns.failures import classify
from nrllm.exceptions import (
    AgentRefused,
    PolicyDenied,
    RequestRefused,
    ResultNotStorable,
    UnclearOutcome,
)

PROVIDER = TerminationReason.PROVIDER_FAILED
HTTP = errors.ModelHTTPError


def http(status: int, category: type[errors.ModelAPIError] | None = None) -> HTTP:
    return HTTP.for_category(category, status_code=status, model_name="m")  # type: ignore[arg-type]


ROWS = [
    (http(429), FailureClass.RATE_LIMITED, PROVIDER),
    (http(429, errors.ModelRateLimitError), FailureClass.RATE_LIMITED, PROVIDER),
    (http(402, errors.ModelQuotaExceededError), FailureClass.CLIENT_ERROR, PROVIDER),
    (http(500), FailureClass.TRANSIENT, PROVIDER),
    (http(500, errors.ModelServerError), FailureClass.TRANSIENT, PROVIDER),
    (http(503, errors.ModelUnavailableError), FailureClass.TRANSIENT, PROVIDER),
    (http(529, errors.ModelOverloadedError), FailureClass.TRANSIENT, PROVIDER),
    (http(401), FailureClass.AUTHENTICATION, PROVIDER),
    (http(403, errors.ModelAuthenticationError), FailureClass.AUTHENTICATION, PROVIDER),
    (http(400), FailureClass.CLIENT_ERROR, PROVIDER),
    (http(404, errors.ModelNotFoundError), FailureClass.CLIENT_ERROR, PROVIDER),
    (http(422, errors.ModelRequestRejectedError), FailureClass.CLIENT_ERROR, PROVIDER),
    (http(400, errors.ModelContextWindowExceededError), FailureClass.CLIENT_ERROR, PROVIDER),
    (errors.ModelConnectionError("m", "refused"), FailureClass.TRANSIENT, PROVIDER),
    (errors.ModelTimeoutError("m", "late"), FailureClass.TRANSIENT, PROVIDER),
    (errors.ModelRequestTimeout("m", 1.0), FailureClass.TRANSIENT, PROVIDER),
    (errors.ModelAPIError("m", "something"), FailureClass.TRANSIENT, PROVIDER),
    (
        errors.UsageLimitExceeded("The next request would exceed the request_limit of 1"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.MAX_ITERATIONS,
    ),
    (
        errors.UsageLimitExceeded("Exceeded the total_tokens_limit of 1"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.BUDGET_EXHAUSTED,
    ),
    (
        errors.UnexpectedModelBehavior("Tool 'x' exceeded max retries count of 1"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.MAX_ITERATIONS,
    ),
    (
        errors.UnexpectedModelBehavior("Exceeded maximum output retries (1)"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.MAX_ITERATIONS,
    ),
    (errors.UnexpectedModelBehavior("nonsense"), FailureClass.CLIENT_ERROR, None),
    (
        errors.ContentFilterError("filtered"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.POLICY_DENIED,
    ),
    (
        errors.OutputTokenLimitExceeded("cut"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.BUDGET_EXHAUSTED,
    ),
    (
        errors.RunTimedOut("late"),
        FailureClass.CLIENT_ERROR,
        TerminationReason.BUDGET_EXHAUSTED,
    ),
    (errors.RunCancelled("stopped"), FailureClass.CLIENT_ERROR, None),
    (errors.SuspendedResponseExpired("gone"), FailureClass.TRANSIENT, PROVIDER),
    (errors.ConcurrencyLimitExceeded("full"), FailureClass.RATE_LIMITED, None),
    (errors.UserError("no model"), FailureClass.CONFIGURATION, None),
    (AgentRefused("no"), FailureClass.CONFIGURATION, None),
    (PolicyDenied("no"), FailureClass.CLIENT_ERROR, TerminationReason.POLICY_DENIED),
    (RequestRefused("no"), FailureClass.CLIENT_ERROR, None),
    (ResultNotStorable("no"), FailureClass.CLIENT_ERROR, None),
    (UnclearOutcome("t", "model_retry"), FailureClass.TRANSIENT, None),
    (UnclearOutcome("t", "validation_error"), FailureClass.CLIENT_ERROR, None),
    (
        errors.FallbackExceptionGroup("all", [http(401), http(503)]),
        FailureClass.TRANSIENT,
        PROVIDER,
    ),
    (
        errors.FallbackExceptionGroup("all", [http(401), http(400)]),
        FailureClass.CLIENT_ERROR,
        PROVIDER,
    ),
]


@pytest.mark.parametrize(
    ("error", "failure_class", "reason"),
    ROWS,
    ids=[f"{type(row[0]).__name__}-{number}" for number, row in enumerate(ROWS)],
)
def test_row(
    error: Exception, failure_class: FailureClass, reason: TerminationReason | None
) -> None:
    failure = classify(error)
    assert failure.failure_class == failure_class
    assert failure.reason == reason


def test_retry_after_is_handed_on() -> None:
    error = HTTP(429, "m", headers={"Retry-After": "17"})
    assert classify(error).retry_after_seconds == 17


def test_a_failed_write_is_judged_by_its_cause() -> None:
    failed = WriteFailed("charge")
    failed.__cause__ = http(503)
    assert classify(failed).failure_class == FailureClass.TRANSIENT
