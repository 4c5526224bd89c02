from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agentruns.enums import FailureClass, TerminationReason, ToolEffect
from agentruns.failures import Failure
from agentruns.verdict import Action, Verdict, decide, may_retry_after_fence, retry_delay

STOPPED_WELL: dict[str, Any] = {
    "fence": "",
    "cancel_requested": False,
    "executable_again": True,
    "failure": None,
    "requeue_count": 0,
    "max_requeues": 3,
}
TRANSIENT = Failure(FailureClass.TRANSIENT)
INCURABLE = [
    FailureClass.AUTHENTICATION,
    FailureClass.CONFIGURATION,
    FailureClass.CLIENT_ERROR,
    FailureClass.UNKNOWN,
]

REQUEUE = Verdict(Action.REQUEUE)
CANCEL = Verdict(Action.CANCEL, TerminationReason.CANCELLED)


def dead(reason: TerminationReason) -> Verdict:
    return Verdict(Action.DEAD_LETTER, reason)


# Each row's circumstances, its verdict; every earlier row wins over every later one.
ROWS: list[tuple[dict[str, Any], Verdict]] = [
    ({"fence": "non_idempotent_write"}, dead(TerminationReason.INTERRUPTED_WRITE)),
    ({"cancel_requested": True}, CANCEL),
    ({"executable_again": False}, dead(TerminationReason.NOT_RETRYABLE)),
    ({"failure": Failure(FailureClass.UNKNOWN)}, dead(TerminationReason.NOT_RETRYABLE)),
    ({"requeue_count": 3}, dead(TerminationReason.RETRIES_EXHAUSTED)),
    ({}, REQUEUE),
]


@pytest.mark.parametrize(
    ("fence", "allowed"),
    [
        ("", True),
        ("read_only", True),
        ("idempotent_write", True),
        ("transactional_write", True),
        ("non_idempotent_write", False),
        ("a value of a later version", True),
    ],
)
def test_only_a_non_idempotent_write_forbids_a_retry(fence: str, allowed: bool) -> None:
    assert may_retry_after_fence(fence) is allowed


def test_every_known_effect_is_judged_above() -> None:
    assert set(ToolEffect.values) == {
        "read_only",
        "idempotent_write",
        "transactional_write",
        "non_idempotent_write",
    }


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_each_row_gives_its_verdict(row: int) -> None:
    circumstances, verdict = ROWS[row]
    assert decide(**STOPPED_WELL | circumstances) == verdict


@pytest.mark.parametrize(
    ("earlier", "later"), [(e, late) for late in range(len(ROWS)) for e in range(late)]
)
def test_an_earlier_row_wins_over_a_later_one(earlier: int, later: int) -> None:
    both = STOPPED_WELL | ROWS[later][0] | ROWS[earlier][0]
    assert decide(**both) == ROWS[earlier][1]


@pytest.mark.parametrize("failure_class", INCURABLE)
def test_a_failure_that_a_retry_cannot_cure_is_not_retried(failure_class: FailureClass) -> None:
    verdict = decide(**STOPPED_WELL | {"failure": Failure(failure_class)})
    assert verdict == dead(TerminationReason.NOT_RETRYABLE)


@pytest.mark.parametrize("failure_class", [FailureClass.TRANSIENT, FailureClass.RATE_LIMITED])
def test_a_failure_that_passes_is_retried(failure_class: FailureClass) -> None:
    assert decide(**STOPPED_WELL | {"failure": Failure(failure_class)}) == REQUEUE


def test_every_failure_class_is_judged_above() -> None:
    assert set(FailureClass) == {*INCURABLE, FailureClass.TRANSIENT, FailureClass.RATE_LIMITED}


@pytest.mark.parametrize("fence", ["", "idempotent_write", "a value of a later version"])
def test_any_other_fence_is_retried_within_the_budget(fence: str) -> None:
    assert decide(**STOPPED_WELL | {"fence": fence, "failure": TRANSIENT}) == REQUEUE
    spent = STOPPED_WELL | {"fence": fence, "requeue_count": 3}
    assert decide(**spent) == dead(TerminationReason.RETRIES_EXHAUSTED)


def test_the_reason_of_a_failure_is_kept_where_it_is_not_retried() -> None:
    provider = Failure(FailureClass.TRANSIENT, reason=TerminationReason.PROVIDER_FAILED)
    once = decide(**STOPPED_WELL | {"failure": provider, "executable_again": False})
    assert once == dead(TerminationReason.PROVIDER_FAILED)
    assert decide(**STOPPED_WELL | {"failure": provider}) == REQUEUE


def test_a_budget_of_zero_is_spent_at_once() -> None:
    verdict = decide(**STOPPED_WELL | {"max_requeues": 0})
    assert verdict == dead(TerminationReason.RETRIES_EXHAUSTED)


def delay(requeue_count: int, jitter: float, **options: Any) -> timedelta:
    return retry_delay(
        requeue_count,
        base_seconds=5,
        max_seconds=600,
        uniform=lambda low, high: low + (high - low) * jitter,
        **options,
    )


def test_the_delay_doubles_up_to_its_maximum() -> None:
    delays = [delay(count, 1.0).total_seconds() for count in range(9)]
    assert delays == [5, 10, 20, 40, 80, 160, 320, 600, 600]


def test_jitter_takes_away_half_at_most() -> None:
    assert delay(2, 0.0) == timedelta(seconds=10)
    assert delay(2, 1.0) == timedelta(seconds=20)


def test_a_huge_count_does_not_overflow() -> None:
    assert delay(10**9, 1.0) == timedelta(seconds=600)


def test_is_never_shorter_than_the_other_side_asked_for() -> None:
    assert delay(0, 1.0, retry_after_seconds=900) == timedelta(seconds=900)
    assert delay(0, 1.0, retry_after_seconds=1) == timedelta(seconds=5)
