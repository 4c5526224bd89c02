from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, InternalError, OperationalError
from django.utils.module_loading import import_string

from .conf import conf
from .enums import FailureClass, TerminationReason
from .exceptions import (
    ApprovalDenied,
    JournalMismatch,
    LandedWithoutResult,
    PayloadError,
    PayloadUnreadable,
    SegmentInterrupt,
    UnknownAgent,
)
from .raised import cause_of, is_a


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failure means for the verdict.

    `reason` is the termination reason if the run is not retried (else `not_retryable`);
    `retry_after_seconds` is the least delay that the other side asked for.
    """

    failure_class: FailureClass
    reason: TerminationReason | None = None
    retry_after_seconds: float | None = None


Classifier = Callable[[BaseException], Failure | FailureClass | None]

_registered: list[Classifier] = []

# In order: the first row that matches holds.
BUILT_IN: tuple[tuple[tuple[type[BaseException], ...], FailureClass], ...] = (
    ((OperationalError, InterfaceError, InternalError), FailureClass.TRANSIENT),
    ((ConnectionError, TimeoutError, asyncio.CancelledError), FailureClass.TRANSIENT),
    # A queue's timeout is a SystemExit from a signal handler; the budget bounds it.
    ((SystemExit, KeyboardInterrupt, MemoryError), FailureClass.TRANSIENT),
    ((JournalMismatch, UnknownAgent, PayloadUnreadable), FailureClass.CONFIGURATION),
    ((ImproperlyConfigured, ImportError), FailureClass.CONFIGURATION),
    ((LandedWithoutResult, PayloadError), FailureClass.CLIENT_ERROR),
)


def register_classifier(classifier: Classifier) -> None:
    """Add a classifier; it is asked before the built-in rules. For apps, in `AppConfig.ready()`."""
    if classifier not in _registered:
        _registered.append(classifier)


def classify(error: BaseException) -> Failure:
    """Tell what a failure means: the settings' classifiers, then registered ones, then built-in rules.

    An interrupted segment is judged by what interrupted it: a failed write by what its body raised.
    """
    cause = cause_of(error) if is_a(error, SegmentInterrupt) else None
    if cause is not None:
        return classify(cause)
    configured: list[Classifier] = [import_string(path) for path in conf.FAILURE_CLASSIFIERS]
    for classifier in (*configured, *_registered):
        answer = classifier(error)
        if answer is not None:
            return answer if isinstance(answer, Failure) else Failure(answer)
    if is_a(error, ApprovalDenied):
        return Failure(FailureClass.CLIENT_ERROR, TerminationReason.APPROVAL_DENIED)
    return Failure(_built_in(error))


def _built_in(error: BaseException) -> FailureClass:
    for types, failure_class in BUILT_IN:
        if is_a(error, *types):
            return failure_class
    return FailureClass.UNKNOWN


def class_of_http_status(status: int) -> FailureClass:
    """What an HTTP status of another service means (RFC 9110, RFC 6585)."""
    if status == 429:
        return FailureClass.RATE_LIMITED
    if status in (401, 403):
        return FailureClass.AUTHENTICATION
    if status in (408, 409, 425) or status >= 500:
        return FailureClass.TRANSIENT
    return FailureClass.CLIENT_ERROR
