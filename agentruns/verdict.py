from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from .enums import RETRYABLE_FAILURES, Resolution, RunMode, TerminationReason, ToolEffect
from .exceptions import TransitionRefused
from .failures import Failure

# A stranger's header must not put a run off for ever.
MOST_RETRY_AFTER_SECONDS = 86_400.0


class Action(Enum):
    DEAD_LETTER = "dead_letter"
    CANCEL = "cancel"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a run that stopped; `reason` is set unless it is requeued."""

    action: Action
    reason: TerminationReason | None = None


def may_retry_after_fence(pending_effect: str) -> bool:
    """Whether a run that stopped with this fence may be executed again (ADR-112).

    Only a standing non-idempotent write forbids it: an empty fence, any other effect and an
    unrecognised value allow it.
    """
    return pending_effect != ToolEffect.NON_IDEMPOTENT_WRITE


def is_executable_again(mode: str, *, has_request: bool) -> bool:
    """Whether a run can be executed in the background: it has a request, and no caller waits for it.

    One that parked or was resolved is queued from then on.
    """
    return has_request and mode == RunMode.QUEUED


def decide(
    *,
    fence: str,
    cancel_requested: bool,
    executable_again: bool,
    failure: Failure | None,
    requeue_count: int,
    max_requeues: int,
) -> Verdict:
    """The one verdict on a run that stopped, for the reaper and for the in-process recovery.

    `fence` is the stamped effect, never the code's present one. `executable_again` is false for a
    run without a stored request and for a synchronous one. `failure` is None for a reaped run.
    The rows are those of the design's verdict table, in its order.
    """
    if not may_retry_after_fence(fence):
        return Verdict(Action.DEAD_LETTER, TerminationReason.INTERRUPTED_WRITE)
    if cancel_requested:
        return Verdict(Action.CANCEL, TerminationReason.CANCELLED)
    reason = failure.reason if failure and failure.reason else TerminationReason.NOT_RETRYABLE
    if not executable_again:
        return Verdict(Action.DEAD_LETTER, reason)
    if failure is not None and failure.failure_class not in RETRYABLE_FAILURES:
        return Verdict(Action.DEAD_LETTER, reason)
    if requeue_count >= max_requeues:
        return Verdict(Action.DEAD_LETTER, TerminationReason.RETRIES_EXHAUSTED)
    return Verdict(Action.REQUEUE)


@dataclass(frozen=True, slots=True)
class Opinion:
    """A person's verdict on an interrupted write.

    `state` is the digest of the state that it is based on, `result` a keyed one of the result it names,
    `user` the primary key of the account, which keeps it when it is renamed; '' for a label.
    """

    by: str
    verdict: Resolution
    state: str
    result: str = ""
    user: str = ""

    def is_of_the_same_person_as(self, other: Opinion) -> bool:
        return same_name(self.by, other.by) or (bool(self.user) and self.user == other.user)


def same_name(one: str, other: str) -> bool:
    """Whether two names may stand for one person: a command line takes whatever is typed."""
    return one.strip().casefold() == other.strip().casefold()


class Weight(Enum):
    """What a verdict on an interrupted write does."""

    TAKES_EFFECT = "takes_effect"
    PROPOSES = "proposes"
    PROPOSES_ANOTHER = "proposes_another"


def weigh(given: Opinion, proposed: Opinion | None, *, may_second: bool) -> Weight:
    """What a person's verdict does where a second person is needed.

    It takes effect if it is what somebody else proposed, on the same state and with the same result;
    anything else is a new proposal. A proposal on a state that has moved on counts no more.

    Raises:
        TransitionRefused: it seconds one's own proposal, or this person may not be the second.
    """
    if proposed is None or proposed.state != given.state:
        return Weight.PROPOSES
    if (proposed.verdict, proposed.result) != (given.verdict, given.result):
        return Weight.PROPOSES_ANOTHER
    if given.is_of_the_same_person_as(proposed):
        raise TransitionRefused(f"{given.by} proposed this: another person must say the same")
    if not may_second:
        raise TransitionRefused(f"{given.by} asked for the run and may not be the second person")
    return Weight.TAKES_EFFECT


def retry_delay(
    requeue_count: int,
    *,
    base_seconds: float,
    max_seconds: float,
    retry_after_seconds: float | None = None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> timedelta:
    """The delay before a run is executed again: exponential, with jitter over its upper half.

    It is never shorter than what the other side asked for (`Retry-After`), up to a day.
    """
    full = min(max_seconds, base_seconds * 2 ** min(requeue_count, 32))
    seconds = uniform(full / 2, full)
    asked = retry_after_seconds or 0.0
    if not math.isfinite(asked):
        asked = 0.0
    return timedelta(seconds=max(seconds, min(asked, MOST_RETRY_AFTER_SECONDS)))
