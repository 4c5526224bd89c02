from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, InterfaceError, OperationalError

from agentruns import failures
from agentruns.enums import FailureClass, TerminationReason
from agentruns.exceptions import (
    JournalMismatch,
    LandedWithoutResult,
    PayloadError,
    PayloadUnreadable,
    UncertainWrite,
    UnknownAgent,
    WriteFailed,
)
from agentruns.failures import Failure, class_of_http_status, classify, register_classifier


@pytest.fixture
def no_registered_classifiers() -> Iterator[None]:
    before = failures._registered[:]
    failures._registered[:] = []
    yield
    failures._registered[:] = before


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OperationalError("the server closed the connection"), FailureClass.TRANSIENT),
        (InterfaceError("the connection is closed"), FailureClass.TRANSIENT),
        (ConnectionResetError(), FailureClass.TRANSIENT),
        (TimeoutError(), FailureClass.TRANSIENT),
        (asyncio.CancelledError(), FailureClass.TRANSIENT),
        (SystemExit(1), FailureClass.TRANSIENT),
        (KeyboardInterrupt(), FailureClass.TRANSIENT),
        (MemoryError(), FailureClass.TRANSIENT),
        (JournalMismatch("step"), FailureClass.CONFIGURATION),
        (UnknownAgent("a"), FailureClass.CONFIGURATION),
        (PayloadUnreadable(), FailureClass.CONFIGURATION),
        (ImproperlyConfigured(), FailureClass.CONFIGURATION),
        (ModuleNotFoundError(), FailureClass.CONFIGURATION),
        (LandedWithoutResult(), FailureClass.CLIENT_ERROR),
        (PayloadError(), FailureClass.CLIENT_ERROR),
        (DataError(), FailureClass.UNKNOWN),
        (ValueError("a bug"), FailureClass.UNKNOWN),
        (Exception(), FailureClass.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_tells_what_an_error_means(error: BaseException, expected: FailureClass) -> None:
    assert classify(error).failure_class is expected


@pytest.mark.parametrize("interrupt", [WriteFailed, UncertainWrite])
def test_judges_a_failed_write_by_what_its_body_raised(interrupt: type[BaseException]) -> None:
    failed = interrupt("charge failed")
    failed.__cause__ = ConnectionResetError()
    assert classify(failed).failure_class is FailureClass.TRANSIENT
    assert classify(interrupt("no cause")).failure_class is FailureClass.UNKNOWN


class Throttled(Exception):
    pass


def throttled(error: BaseException) -> Failure | None:
    if isinstance(error, Throttled):
        return Failure(
            FailureClass.RATE_LIMITED,
            reason=TerminationReason.PROVIDER_FAILED,
            retry_after_seconds=7,
        )
    return None


def timeouts_are_bugs(error: BaseException) -> FailureClass | None:
    return FailureClass.CLIENT_ERROR if isinstance(error, TimeoutError) else None


@pytest.mark.usefixtures("no_registered_classifiers")
def test_asks_the_applications_classifiers_before_its_own_rules(settings: Any) -> None:
    settings.AGENTRUNS = {"FAILURE_CLASSIFIERS": [f"{__name__}.timeouts_are_bugs"]}
    register_classifier(throttled)
    assert classify(TimeoutError()).failure_class is FailureClass.CLIENT_ERROR
    assert classify(Throttled()) == throttled(Throttled())
    assert classify(ConnectionResetError()).failure_class is FailureClass.TRANSIENT


@pytest.mark.usefixtures("no_registered_classifiers")
def test_registers_a_classifier_once() -> None:
    register_classifier(throttled)
    register_classifier(throttled)
    assert failures._registered == [throttled]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, FailureClass.CLIENT_ERROR),
        (401, FailureClass.AUTHENTICATION),
        (403, FailureClass.AUTHENTICATION),
        (404, FailureClass.CLIENT_ERROR),
        (408, FailureClass.TRANSIENT),
        (409, FailureClass.TRANSIENT),
        (422, FailureClass.CLIENT_ERROR),
        (425, FailureClass.TRANSIENT),
        (429, FailureClass.RATE_LIMITED),
        (500, FailureClass.TRANSIENT),
        (503, FailureClass.TRANSIENT),
        (529, FailureClass.TRANSIENT),
    ],
)
def test_knows_the_statuses_of_http(status: int, expected: FailureClass) -> None:
    assert class_of_http_status(status) is expected
