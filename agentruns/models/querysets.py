from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.db import IntegrityError, models, transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.db.models.functions import Now

from ..conf import conf
from ..enums import TERMINAL, WAITING, EventKind, RunMode, RunStatus
from ..exceptions import GuardedColumns, IdempotencyConflict, RunNotFound
from ..fields import Payload, label
from ..guard import Claim, from_now, lock
from ..telemetry import trace_context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from .run import AgentRun

M = TypeVar("M", bound=models.Model)

PAYLOADS = ("request", "output", "usage")


class Manager(models.Manager[M]):
    """A manager that stays on the database that holds the runs."""

    def get_queryset(self) -> models.QuerySet[M]:
        return super().get_queryset().using(conf.DATABASE)


class AgentRunQuerySet(models.QuerySet["AgentRun"]):
    def queued(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.QUEUED)

    def due(self) -> AgentRunQuerySet:
        """QUEUED runs that a worker may take now."""
        return self.queued().filter(available_at__lte=Now())

    def unwoken(self) -> AgentRunQuerySet:
        """Due runs that nobody took since they were last woken; the pause doubles each time."""
        since_due = F("woken_at") - F("available_at")
        patient = Q(woken_at__lte=from_now(-conf.WAKE_AGAIN_SECONDS)) & (
            Q(woken_at__lte=Now() - since_due)
            | Q(woken_at__lte=from_now(-conf.WAKE_AGAIN_MAX_SECONDS))
        )
        return self.due().filter(Q(woken_at__isnull=True) | patient)

    def running(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.RUNNING)

    def stale(self) -> AgentRunQuerySet:
        """RUNNING runs whose lease has run out, by the database's clock."""
        return self.running().filter(lease_expires_at__lt=Now())

    def waiting(self) -> AgentRunQuerySet:
        return self.filter(status__in=WAITING)

    def settled(self) -> AgentRunQuerySet:
        return self.filter(status__in=TERMINAL)

    def dead_lettered(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.FAILED)

    def fenced(self) -> AgentRunQuerySet:
        """Runs on which a fence stands, executing or dead-lettered."""
        # An OR, not an IN: each side then has a partial index.
        standing = Q(status=RunStatus.RUNNING) | Q(status=RunStatus.FAILED)
        return self.filter(standing).exclude(pending_effect="")

    def unresolved(self) -> AgentRunQuerySet:
        """Dead-lettered runs whose fence stands and on which nobody has given a verdict."""
        return self.fenced().filter(status=RunStatus.FAILED, resolution="")

    def without_payloads(self) -> AgentRunQuerySet:
        return self.defer(*PAYLOADS)

    def for_judgement(self) -> AgentRunQuerySet:
        """What a guard and a verdict read: no payload, but whether there is a request."""
        stored = ExpressionWrapper(Q(request__isnull=False), output_field=BooleanField())
        return self.without_payloads().annotate(has_stored_request=stored)  # type: ignore[no-redef]

    def update(self, **columns: Any) -> int:
        """Refuse guarded columns; only transitions write them.

        Raises:
            GuardedColumns: a guarded column is named.
        """
        self._refuse_guarded(columns)
        return super().update(**columns)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(
        self, objs: Iterable[AgentRun], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        names = tuple(fields)
        self._refuse_guarded(names)
        return super().bulk_update(objs, names, batch_size)

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(
        self,
        objs: Iterable[AgentRun],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[AgentRun]:
        self._refuse_guarded(update_fields or ())
        rows = list(objs)
        for row in rows:
            row.refuse_guarded_values()
        return super().bulk_create(
            rows, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )

    def _refuse_guarded(self, names: Iterable[str]) -> None:
        guarded = tuple(sorted(self.model.guarded_columns() & set(names)))
        if guarded:
            raise GuardedColumns(guarded)

    def write_guarded(self, **columns: Any) -> int:
        """For the transitions of AgentRun alone, which hold the row's lock."""
        return super().update(**columns)

    write_guarded.alters_data = True  # type: ignore[attr-defined]

    def lock_one(self, **lookup: Any) -> AgentRun:
        """Lock one run for a judgement; the caller is in a transaction.

        Raises:
            RunNotFound: there is none.
        """
        run = lock(self.for_judgement().filter(**lookup)).first()
        if run is None:
            raise RunNotFound(f"no run with {lookup}")
        return run

    def lock_stale(self, pks: Sequence[int]) -> AgentRunQuerySet:
        """Lock those of these runs that nobody else holds, then judge in the next statement.

        A heartbeat that lands first wins, and two reapers share the work.
        """
        locked = lock(self.running().filter(pk__in=pks), skip_locked=True).values_list(
            "pk", flat=True
        )
        return self.for_judgement().stale().filter(pk__in=list(locked)).order_by("pk")

    def enqueue(
        self,
        agent: str,
        request: Payload | None,
        *,
        mode: RunMode = RunMode.QUEUED,
        agent_version: str = "",
        idempotency_key: str | None = None,
        requested_by: str = "",
        correlation_id: str = "",
        available_at: datetime | None = None,
        delay_seconds: float = 0.0,
        woken: bool = True,
    ) -> tuple[AgentRun, bool]:
        """Insert a QUEUED run, or find the one that has this idempotency key.

        Inside the caller's transaction it commits or rolls back with it; a collision of keys leaves
        that transaction usable. Returns the run, and whether it is new.

        Raises:
            IdempotencyConflict: the key is taken by a run with another request.
            PayloadError: a name, id or key is too long or holds what a text column can't.
        """
        run = self.model(
            agent=label(agent, "the agent's name"),
            request=request,
            mode=mode,
            agent_version=label(agent_version, "the agent's version"),
            idempotency_key=idempotency_key and label(idempotency_key, "the idempotency key"),
            requested_by=label(requested_by, "requested_by"),
            correlation_id=label(correlation_id, "the correlation id"),
            trace_context=trace_context(),
            available_at=available_at or (from_now(delay_seconds) if delay_seconds else Now()),
            woken_at=Now() if woken else None,
        )
        if not idempotency_key:
            run.idempotency_key = None
            return self._accept(run), True
        existing = self._with_key(run)
        if existing is not None:
            return existing, False
        try:
            with transaction.atomic(using=self.db):
                return self._accept(run), True
        except IntegrityError:
            existing = self._with_key(run)
            if existing is None:
                raise
            return existing, False

    def _accept(self, run: AgentRun) -> AgentRun:
        with transaction.atomic(using=self.db, savepoint=False):
            run.insert(using=self.db)
            run.add_event(EventKind.QUEUED, actor=run.requested_by)
        run.refresh_from_db(fields=["available_at", "woken_at", "created_at"])
        return run

    def _with_key(self, wanted: AgentRun) -> AgentRun | None:
        run = self.filter(agent=wanted.agent, idempotency_key=wanted.idempotency_key).first()
        if run is not None and digest_of(run.request) != digest_of(wanted.request):
            raise IdempotencyConflict(
                f"idempotency key {wanted.idempotency_key!r} of agent {wanted.agent!r} belongs to "
                f"run {run.uuid}, which has another request"
            )
        return run

    def claim(self, uuid: UUID, owner: str) -> tuple[AgentRun, Claim] | None:
        """Take a QUEUED run that is due: RUNNING, a new epoch, a lease that begins now.

        A message that is early, late, stale or a duplicate finds nothing to claim. A run whose
        journal holds an unresolved write is dead-lettered instead, whatever its columns say.
        Returns None where nothing was claimed.
        """
        with transaction.atomic(using=self.db):
            run = lock(self.for_judgement().filter(uuid=uuid)).first()
            if run is None or not self.due().filter(pk=run.pk).exists():
                return None
            claim = run.take(owner)
        if claim is None:
            return None
        run.refresh_state()
        return run, claim

    def take_unwoken(self, limit: int) -> list[UUID]:
        """Mark up to `limit` due runs that nobody took as woken now, and return their uuids."""
        with transaction.atomic(using=self.db):
            pks = list(self.unwoken().order_by("available_at").values_list("pk", flat=True)[:limit])
            locked = lock(self.filter(pk__in=pks), skip_locked=True).values_list("pk", flat=True)
            rows = self.unwoken().filter(pk__in=list(locked))
            found = dict(rows.values_list("pk", "uuid"))
            self.filter(pk__in=list(found)).write_guarded(woken_at=Now())
        return list(found.values())


def digest_of(payload: Payload | None) -> str:
    return payload.digest if payload is not None else ""


class AgentRunManager(Manager["AgentRun"].from_queryset(AgentRunQuerySet)):  # type: ignore[misc]
    pass
