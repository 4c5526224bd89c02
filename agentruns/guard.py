"""Lock, then judge: the one guard that every transition of a run goes through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from django.db import connections
from django.db.models.functions import Now

from .conf import conf
from .enums import RunStatus
from .exceptions import LeaseLost

if TYPE_CHECKING:
    from django.db.models import Expression, Model, QuerySet

    from .models.row import RunRow

M = TypeVar("M", bound="Model")


@dataclass(frozen=True, slots=True)
class Claim:
    """A segment's right to act on a run: its owner and epoch, taken at the claim, never re-read."""

    run_id: int
    owner: str
    epoch: int


def lock(rows: QuerySet[M], *, skip_locked: bool = False) -> QuerySet[M]:
    """Lock these rows until the transaction's end, without blocking inserts that refer to them.

    SQLite has no row locks: there `transaction_mode: IMMEDIATE` serialises the writers instead.
    """
    features = connections[rows.db].features
    return rows.select_for_update(
        of=("self",) if features.has_select_for_update_of else (),
        no_key=features.has_select_for_no_key_update,
        skip_locked=skip_locked and features.has_select_for_update_skip_locked,
    )


def judge_ownership(run: RunRow, claim: Claim) -> None:
    """Judge, under the lock, that this segment still owns the run.

    A lease that ran out but that nobody took is still its own: staleness is the reaper's to judge.

    Raises:
        LeaseLost: the run is not RUNNING, or under another owner or epoch.
    """
    owned = (
        run.status == RunStatus.RUNNING
        and run.claimed_by == claim.owner
        and run.claim_epoch == claim.epoch
    )
    if not owned:
        raise LeaseLost(
            f"run {run.uuid} is {run.status} in epoch {run.claim_epoch}; "
            f"this segment held epoch {claim.epoch}"
        )


def new_lease() -> Expression:
    """The end of a lease that begins now, by the database's clock."""
    return from_now(conf.LEASE_SECONDS)


def from_now(seconds: float | timedelta) -> Expression:
    """A moment this many seconds ahead (behind, if negative), by the database's clock."""
    delta = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
    return Now() + delta
