from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..clock import clock
from ..conf import conf
from ..enums import (
    QUESTIONS,
    UNANSWERED,
    StepKind,
    StepOutcome,
    StepState,
    Testimony,
    ToolEffect,
)
from ..fields import Payload, PayloadField
from ..guard import from_now
from .partial import PartialIndexes
from .querysets import Manager

if TYPE_CHECKING:
    from django.db.models import Expression

    from ..guard import Claim
    from .row import RunRow


# A write without a record or a verdict, for each that asks: the ORM, PostgreSQL's statements (of the
# table `doubt`), and code that has the row.
IN_DOUBT = [StepState.STARTED, StepState.UNCERTAIN]
UNRESOLVED_WRITE = Q(effect=ToolEffect.NON_IDEMPOTENT_WRITE, state__in=IN_DOUBT)
UNRESOLVED_SQL = (
    f"doubt.effect = '{ToolEffect.NON_IDEMPOTENT_WRITE}' AND doubt.state IN "
    f"({', '.join(repr(str(state)) for state in IN_DOUBT)})"
)


@dataclass(frozen=True, slots=True)
class StepCall:
    """What the code asks for: which step (`key`), what it does to the world, with which arguments.

    `position` is the ordinal of the call in the segment, `attempt` follows the journal's last one,
    `digest` is the arguments' (or, for a model request, the request's).
    """

    key: str
    name: str
    kind: StepKind
    effect: ToolEffect
    arguments: Payload | None
    digest: str
    position: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How a step's body ended, as it is recorded and as a replay gives it back.

    `began` and `ended` are what the worker's `clock()` said then; None where nobody looked.
    """

    outcome: StepOutcome
    result: Payload | None = None
    error: str = ""
    began: float | None = None
    ended: float | None = None


class StepQuerySet(models.QuerySet["Step"]):
    def recorded(self) -> StepQuerySet:
        return self.filter(state=StepState.RECORDED)

    def unresolved_writes(self) -> StepQuerySet:
        """Non-idempotent attempts without a record or a verdict: each is a standing fence."""
        return self.filter(UNRESOLVED_WRITE)

    def open_questions(self) -> StepQuerySet:
        """What a parked run waits for a person to answer."""
        return self.filter(kind__in=sorted(QUESTIONS), state=StepState.STARTED)

    def due_for_asking(self) -> StepQuerySet:
        """Writes in doubt whose destination has given no answer yet and may be asked (again) now."""
        now = Q(ask_after__isnull=True) | Q(ask_after__lte=Now())
        unanswered = Q(
            testimony__in=["", *sorted(UNANSWERED)], asked_count__lt=conf.VERIFY_ATTEMPTS
        )
        return self.unresolved_writes().filter(now & unanswered)

    def without_payloads(self) -> StepQuerySet:
        return self.defer("arguments", "result", "late_result")


class StepManager(Manager["Step"].from_queryset(StepQuerySet)):  # type: ignore[misc]
    pass


class Step(PartialIndexes):
    """One attempt at one journaled unit of work."""

    run = models.ForeignKey(
        "agentruns.AgentRun", models.CASCADE, related_name="steps", db_index=False
    )
    key = models.CharField(max_length=255)
    attempt = models.PositiveIntegerField()
    # The key of the attempt that is recorded, else NULL: unique for a run on every database.
    recorded_key = models.CharField(max_length=255, null=True, editable=False)  # noqa: DJ001
    position = models.PositiveIntegerField(default=0)
    kind = models.CharField(max_length=16, choices=StepKind.choices)
    name = models.CharField(max_length=200)
    effect = models.CharField(max_length=32, choices=ToolEffect.choices)
    state = models.CharField(max_length=16, choices=StepState.choices)
    outcome = models.CharField(max_length=32, choices=StepOutcome.choices, blank=True)
    arguments = PayloadField()
    digest = models.CharField(max_length=64, blank=True)
    result = PayloadField()
    error = models.TextField(blank=True)
    idempotency_key = models.CharField(max_length=36)
    epoch = models.PositiveIntegerField()
    owner = models.CharField(max_length=255, blank=True)
    started_at = models.DateTimeField(db_default=Now())
    # When its body was seen to end. NULL where nobody saw that, or where a verdict stands for it.
    ended_at = models.DateTimeField(null=True, blank=True)

    # When the stamp of the write that this decision allows took it up.
    used_at = models.DateTimeField(null=True, blank=True)

    # What the destination said when it was asked about this write in doubt, and when to ask again.
    testimony = models.CharField(max_length=16, choices=Testimony.choices, blank=True)
    asked_count = models.PositiveIntegerField(default=0)
    ask_after = models.DateTimeField(null=True, blank=True)

    # What a worker that had lost the run still learnt about the write that it had started.
    late_outcome = models.CharField(max_length=32, choices=StepOutcome.choices, blank=True)
    late_result = PayloadField()
    late_error = models.TextField(blank=True)
    late_at = models.DateTimeField(null=True, blank=True)

    objects = StepManager()

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        base_manager_name = "objects"
        constraints = (
            models.UniqueConstraint(
                fields=["run", "key", "attempt"], name="agentruns_step_attempt"
            ),
            models.UniqueConstraint(
                fields=["run", "recorded_key"], name="agentruns_step_recorded_once"
            ),
            models.CheckConstraint(
                name="agentruns_step_recorded_has_key",
                condition=Q(
                    state=StepState.RECORDED,
                    recorded_key__isnull=False,
                    recorded_key=models.F("key"),
                )
                | Q(~Q(state=StepState.RECORDED), recorded_key__isnull=True),
            ),
        )
        # The second witness of a fence is found at once, however long the journal.
        indexes = (
            models.Index(
                fields=["run"], name="agentruns_step_in_doubt", condition=UNRESOLVED_WRITE
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.key}, attempt {self.attempt}): {self.state}"

    @property
    def is_unresolved_write(self) -> bool:
        return self.effect == ToolEffect.NON_IDEMPOTENT_WRITE and self.state in IN_DOUBT

    @property
    def raised(self) -> bool:
        """Whether its worker saw its body raise, and nobody has decided on it since."""
        return self.state == StepState.UNCERTAIN and self.outcome == StepOutcome.RAISED

    @property
    def asked_again_at(self) -> datetime | None:
        """When its destination is asked again; None where it is not, whoever settles the run."""
        again = self.testimony in UNANSWERED and self.asked_count < conf.VERIFY_ATTEMPTS
        return self.ask_after if again else None

    @property
    def settled_by_verdict(self) -> bool:
        """Whether a person or a destination said how it ended, since no worker saw that."""
        decided = {StepState.RECORDED, StepState.NOT_APPLIED}
        return self.state in decided and self.ended_at is None

    @property
    def landed_late(self) -> bool:
        return self.late_outcome in LANDED

    @property
    def came_back_late(self) -> bool:
        """Whether a worker that had lost the run reported that its body returned, or never began.

        A body that raised may have left work behind.
        """
        return self.late_outcome not in ("", StepOutcome.RAISED)

    @property
    def ending(self) -> Ending:
        """How the recorded body ended."""
        return Ending(StepOutcome(self.outcome), self.result, self.error)

    @classmethod
    def of(cls, run: RunRow, claim: Claim, call: StepCall, attempt: int, **columns: Any) -> Step:
        """An unsaved attempt at this call, in this epoch."""
        return cls(**attempt_columns(run, claim, call, attempt), **columns)


LANDED = frozenset({StepOutcome.RETURNED, StepOutcome.LANDED_WITHOUT_RESULT})


def attempt_columns(run: RunRow, claim: Claim, call: StepCall, attempt: int) -> dict[str, Any]:
    """The columns that every attempt at this call has, in this epoch."""
    return {
        "run_id": run.pk,
        "key": call.key,
        "attempt": attempt,
        "position": call.position,
        "kind": call.kind,
        "name": call.name,
        "effect": call.effect,
        "arguments": call.arguments,
        "digest": call.digest,
        "idempotency_key": idempotency_key(run.uuid, call.key),
        "epoch": claim.epoch,
        "owner": claim.owner,
    }


@lru_cache(maxsize=64)
def idempotency_key(run_uuid: uuid.UUID, key: str) -> str:
    """The key that a body hands to its destination: the same for every attempt of a step."""
    return str(uuid.uuid5(run_uuid, key))


def mark_uncertain(attempts: Iterable[int], **said: Any) -> None:
    """Note that nobody knows how these attempts ended, but for those that have an end."""
    in_flight = Step.objects.filter(pk__in=list(attempts), state=StepState.STARTED)
    in_flight.update(state=StepState.UNCERTAIN, **said)


def ago(reading: float | None) -> timedelta:
    """How long ago this worker's `clock()` gave this reading; nothing where it was not looked at.

    A statement subtracts it from the database's time: a worker's wall clock decides nothing.
    """
    return timedelta(seconds=max(0.0, clock() - reading) if reading is not None else 0.0)


def moment_of(reading: float | None) -> Expression:
    """The moment of a reading of this worker's `clock()`, by the database's time."""
    return from_now(-ago(reading))


def recorded_columns(key: str, ending: Ending) -> dict[str, Any]:
    """The columns of an attempt that is recorded with this ending."""
    return {
        "state": StepState.RECORDED,
        "recorded_key": key,
        "outcome": ending.outcome,
        "result": ending.result,
        "error": ending.error,
        "ended_at": Now(),
    }


def raised_columns(ending: Ending) -> dict[str, Any]:
    """The columns of an attempt in doubt whose body raised; then, as far as it was seen, it ended."""
    return {
        "outcome": ending.outcome,
        "error": ending.error,
        "ended_at": moment_of(ending.ended),
    }
