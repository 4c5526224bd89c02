from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from ..conf import conf
from ..enums import TERMINAL, WAITING, EventKind, RunStatus, TerminationReason
from ..exceptions import TransitionRefused
from ..fields import label
from ..redaction import told
from ..verdict import may_retry_after_fence
from .row import RunRow
from .stopping import dead_lettered

# The class of error of a run that was held: what it did meanwhile is not in this database.
HELD = "Held"
MOVABLE = WAITING | {RunStatus.QUEUED, RunStatus.FAILED}


class OperatorTransitions(RunRow):
    """What those who run the workers do to a run: about versions, and after a restore."""

    class Meta:
        abstract = True

    def fail(self, *, by: str, reason: str) -> None:
        """Give up a QUEUED run that nobody takes; what its journal has in doubt stays in doubt.

        Raises:
            TransitionRefused: it is not queued.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status != RunStatus.QUEUED:
                raise TransitionRefused(
                    f"run {self.uuid} is {row.status}; only a queued one is failed"
                )
            row._give_up(by, f"failed by {by}: {reason}")

    def move_to_version(self, version: str, *, by: str, reason: str = "") -> bool:
        """Let workers that serve `version` of the agent execute this run. Returns whether it is due.

        A failed run stays failed: it is then retried under that version.

        Raises:
            TransitionRefused: a worker has it, it has ended otherwise, or it has this version.
            PayloadError: `version` is too long, or holds what a text column can't.
        """
        version = label(version, "the agent's version")
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status not in MOVABLE:
                raise TransitionRefused(f"run {self.uuid} is {row.status}; it can't be moved")
            if row.agent_version == version:
                raise TransitionRefused(f"run {self.uuid} is of version {version!r} already")
            due: bool = type(self).objects.due().filter(pk=row.pk).exists()
            row._write(
                agent_version=version,
                **({"available_at": Now(), "woken_at": Now()} if due else {}),
            )
            said: dict[str, Any] = {
                "from": row.agent_version,
                "to": version,
                "why": told(reason),
            }
            row.add_event(EventKind.MOVED, actor=by, **said)
            return due

    def hold(self, *, by: str, reason: str) -> TerminationReason:
        """Dead-letter a run that has not ended, whoever has it: after a restore, or in a copy.

        What the fence stood for stays in doubt. A worker that has the run loses it at its next guard.
        Returns the reason with which it ended.

        Raises:
            TransitionRefused: it has ended.
        """
        with transaction.atomic(using=conf.DATABASE):
            row = self._lock()
            if row.status in TERMINAL:
                raise TransitionRefused(
                    f"run {self.uuid} is {row.status}; there is nothing to hold"
                )
            why = f"held by {by}: {reason}; what it has done meanwhile is not known here"
            return row._give_up(by, why, error_class=HELD)

    def reason_if_given_up(self) -> TerminationReason:
        """The reason with which this run would be dead-lettered if somebody gave it up."""
        return reason_for(self.standing_fence()[0])

    def _give_up(self, by: str, why: str, error_class: str = "") -> TerminationReason:
        """Dead-letter this locked row with its fence standing, as the verdict would."""
        fence = self.standing_fence()
        reason = reason_for(fence[0])
        self._become(dead_lettered(reason, fence, error_class, told(why)), by)
        return reason


def reason_for(effect: str) -> TerminationReason:
    """The reason of a run that was given up with this effect standing."""
    if may_retry_after_fence(effect):
        return TerminationReason.NOT_RETRYABLE
    return TerminationReason.INTERRUPTED_WRITE
