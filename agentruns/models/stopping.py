"""What becomes of a run that stopped: the columns and the event of each verdict. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.db.models.functions import Coalesce, Now

from ..conf import conf
from ..enums import TERMINAL, EventKind, RunStatus, TerminationReason, ToolEffect
from ..failures import Failure
from ..verdict import Action, Verdict, may_retry_after_fence, retry_delay

REAPER = "reaper"
NOT_OWNED: dict[str, Any] = {"claimed_by": "", "lease_expires_at": None}
NO_FENCE: dict[str, Any] = {"pending_effect": "", "pending_step_id": None}
# The only columns of a stopped run whose value is the database's to find.
CANCEL_TIME = Coalesce(F("cancel_requested_at"), Now())


@dataclass(frozen=True, slots=True)
class Stopped:
    """A status, the columns that go with it, and the event.

    `delay` ahead, the run is due again; `uncertain_attempt` is what it was writing when it stopped.
    """

    status: RunStatus
    kind: EventKind
    columns: dict[str, Any]
    data: dict[str, Any]
    delay: timedelta | None = None
    uncertain_attempt: int | None = None


def move_columns(to: RunStatus, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of a move to this status: a run is owned only where they name an owner."""
    finish = {"finished_at": Now()} if to in TERMINAL else {}
    return {"status": to, **NOT_OWNED, **columns, **finish}


def after_stop(
    verdict: Verdict,
    requeue_count: int,
    fence: tuple[str, int | None],
    *,
    failure: Failure | None = None,
    error_class: str = "",
    error_message: str = "",
    worker_ended: bool = False,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Stopped:
    """What the verdict makes of a run; `uniform` finds the jitter of a delay."""
    if verdict.action is Action.CANCEL:
        return cancelled()
    if verdict.action is Action.REQUEUE:
        return requeued(requeue_count, failure, error_class, uniform)
    reason = verdict.reason or TerminationReason.NOT_RETRYABLE
    return dead_lettered(reason, fence, error_class, error_message, worker_ended)


def standing_fence(
    effect: str, attempt: int | None, witness: Callable[[], int | None]
) -> tuple[str, int | None]:
    """The effect and the attempt of the write in flight; `witness` is the journal's last in doubt."""
    if not may_retry_after_fence(effect) and attempt is not None:
        return effect, attempt
    doubtful = witness()
    if doubtful is not None:
        return ToolEffect.NON_IDEMPOTENT_WRITE, doubtful
    return effect, attempt


def lease_lost(expired_at: datetime | None) -> dict[str, Any]:
    return {"lease_expired_at": str(expired_at and expired_at.isoformat())}


def ran_out(owner: str) -> str:
    return f"the lease of {owner} ran out"


def requeued(
    requeue_count: int,
    failure: Failure | None,
    error_class: str,
    uniform: Callable[[float, float], float],
) -> Stopped:
    delay = retry_delay(
        requeue_count,
        base_seconds=conf.RETRY_BACKOFF_SECONDS,
        max_seconds=conf.RETRY_BACKOFF_MAX_SECONDS,
        retry_after_seconds=failure.retry_after_seconds if failure else None,
        uniform=uniform,
    )
    return Stopped(
        RunStatus.QUEUED,
        EventKind.REQUEUED,
        {"requeue_count": requeue_count + 1, "woken_at": None, **NO_FENCE},
        {
            "retry": requeue_count + 1,
            "delay_seconds": round(delay.total_seconds(), 3),
            "error": error_class,
            "failure_class": str(failure.failure_class) if failure else "",
        },
        delay,
    )


def dead_lettered(
    reason: TerminationReason,
    fence: tuple[str, int | None],
    error_class: str = "",
    error_message: str = "",
    worker_ended: bool = False,
) -> Stopped:
    effect, attempt = fence
    return Stopped(
        RunStatus.FAILED,
        EventKind.DEAD_LETTERED,
        {
            "termination_reason": reason,
            "error_class": error_class[:200],
            "error_message": error_message,
            "resolution": "",
            "resolved_at": None,
            "resolved_by": "",
            "pending_effect": effect,
            "pending_step_id": attempt,
        },
        {"reason": str(reason), "error": error_class, "worker_ended": worker_ended},
        uncertain_attempt=attempt if reason is TerminationReason.INTERRUPTED_WRITE else None,
    )


def cancelled() -> Stopped:
    return Stopped(
        RunStatus.CANCELLED,
        EventKind.CANCELLED,
        {
            "termination_reason": TerminationReason.CANCELLED,
            "cancel_requested_at": CANCEL_TIME,
            **NO_FENCE,
        },
        {},
    )
