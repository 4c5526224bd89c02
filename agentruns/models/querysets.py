from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from django.db import IntegrityError, models, transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.db.models.functions import Coalesce, Now

from ..conf import conf
from ..enums import FAILURES, TERMINAL, WAITING, EventKind, RunMode, RunStatus, TerminationReason
from ..exceptions import GuardedColumns, IdempotencyConflict, RunNotFound, SlotsHeld
from ..fields import Payload, label
from ..guard import Claim, from_now, lock, new_lease
from ..telemetry import trace_context
from .slots import SlotQuerySet, make_slots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from .run import AgentRun

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=models.Model)

INTERRUPTED = Q(status=RunStatus.FAILED, termination_reason=TerminationReason.INTERRUPTED_WRITE)

# In a list of these, who waits longest comes first. Each order is that of an index.
ORDERS = {
    "unresolved": ("finished_at", "id"),
    "waiting": ("created_at", "id"),
    "due": ("available_at", "id"),
    "untaken": ("available_at", "id"),
    "in_line": ("available_at", "id"),
}
# Of all runs, the primary key gives the newest. Of some, it must not: PostgreSQL would read it until
# it had found enough of them, be it in the oldest part of the table.
NEWEST = ("-id",)
NEWEST_OF_SOME = ("-created_at", "-id")

# How many runs are looked at beyond those wanted, as others may hold these.
BEHIND = 20

PAYLOADS = ("request", "output", "usage", "digest_key")


def list_order(
    adjectives: Iterable[str] = (), reasons: Sequence[str] = (), *, narrowed: bool = True
) -> tuple[str, ...]:
    """The order of a list of runs that is narrowed by these: one that an index serves."""
    for adjective in adjectives:
        if adjective in ORDERS:
            return ORDERS[adjective]
    if len(reasons) == 1 and reasons[0] in FAILURES:
        return ("-finished_at", "-id")
    return NEWEST_OF_SOME if narrowed else NEWEST


class RunOptions(TypedDict, total=False):
    """What may be said about a run that is enqueued, beside its agent and its request."""

    mode: RunMode
    agent_version: str
    idempotency_key: str | None
    requested_by: str
    correlation_id: str
    available_at: datetime | None
    delay_seconds: float
    woken: bool


DEFAULT_OPTIONS: RunOptions = {
    "mode": RunMode.QUEUED,
    "agent_version": "",
    "idempotency_key": None,
    "requested_by": "",
    "correlation_id": "",
    "available_at": None,
    "delay_seconds": 0.0,
    "woken": True,
}


class Manager(models.Manager[M]):
    """A manager that stays on the database that holds the runs."""

    def get_queryset(self) -> models.QuerySet[M]:
        return super().get_queryset().using(conf.DATABASE)


class AgentRunQuerySet(SlotQuerySet):
    def queued(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.QUEUED)

    def due(self) -> AgentRunQuerySet:
        """QUEUED runs that a worker may take now."""
        return self.queued().filter(available_at__lte=Now())

    def unwoken(self) -> AgentRunQuerySet:
        """Due runs that nobody took since they were last woken; the pause doubles each time."""
        return self.due().filter(Q(woken_at__isnull=True) | long_woken(F("available_at")))

    def untaken(self) -> AgentRunQuerySet:
        """Runs that have been due for UNTAKEN_SECONDS: nobody serves them, or has time for them."""
        return self.queued().filter(available_at__lte=from_now(-conf.UNTAKEN_SECONDS))

    def unasked(self) -> AgentRunQuerySet:
        """Runs in doubt for whose destination no worker was woken since it may be asked."""
        ask_from = Coalesce("pending_step__ask_after", "finished_at")
        not_since = Q(woken_at__isnull=True) | Q(woken_at__lt=F("ask_from"))
        unresolved: AgentRunQuerySet = self.unresolved().annotate(ask_from=ask_from)
        return unresolved.filter(not_since | long_woken(F("ask_from")))

    def running(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.RUNNING)

    def stale(self) -> AgentRunQuerySet:
        """RUNNING runs whose lease has run out, by the database's clock."""
        return self.running().filter(lease_expires_at__lt=Now())

    def waiting(self) -> AgentRunQuerySet:
        return self.filter(status__in=WAITING)

    def unfinished(self) -> AgentRunQuerySet:
        return self.filter(status__in=sorted(set(RunStatus) - TERMINAL))

    def settled(self) -> AgentRunQuerySet:
        return self.filter(status__in=TERMINAL)

    def dead_lettered(self) -> AgentRunQuerySet:
        return self.filter(status=RunStatus.FAILED)

    def fenced(self) -> AgentRunQuerySet:
        """Runs inside a write, and runs dead-lettered inside one that must not be repeated."""
        # As the predicate of an index has it, which must not know `pending_effect`.
        inside = Q(status=RunStatus.RUNNING) & ~Q(pending_effect="")
        return self.filter(inside | INTERRUPTED)

    def unresolved(self) -> AgentRunQuerySet:
        """Runs dead-lettered inside such a write on which nobody has given a verdict."""
        # Not by the status, which the reason implies: PostgreSQL would take the index of all dead
        # letters, and pass over everything that has been decided on.
        return self.filter(termination_reason=TerminationReason.INTERRUPTED_WRITE, resolution="")

    def without_payloads(self) -> AgentRunQuerySet:
        return self.defer(*PAYLOADS)

    def for_judgement(self) -> AgentRunQuerySet:
        """What a guard and a verdict read: no payload, but whether there is a request."""
        stored = ExpressionWrapper(Q(request__isnull=False), output_field=BooleanField())
        runs: AgentRunQuerySet = self.without_payloads().annotate(has_stored_request=stored)
        return runs

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

    def renew_all(self, claims: Collection[Claim]) -> set[Claim]:
        """Let the leases that these claims hold begin anew; rows that somebody holds are left out.

        Returns the claims whose leases were renewed.
        """
        pks = [claim.run_id for claim in claims]
        with transaction.atomic(using=self.db):
            rows = lock(self.running().filter(pk__in=pks), skip_locked=True)
            owned = {Claim(*row) for row in rows.values_list("pk", "claimed_by", "claim_epoch")}
            held = owned.intersection(claims)
            self.filter(pk__in=[claim.run_id for claim in held]).write_guarded(
                lease_expires_at=new_lease()
            )
        return held

    def enqueue(
        self, agent: str, request: Payload | None, **options: Unpack[RunOptions]
    ) -> tuple[AgentRun, bool]:
        """Insert a QUEUED run, or find the one that has this idempotency key.

        Inside the caller's transaction it commits or rolls back with it; a collision of keys leaves
        that transaction usable. Returns the run, and whether it is new.

        Raises:
            IdempotencyConflict: the key is taken by a run with another request.
            PayloadError: a name, id or key is too long or holds what a text column can't.
        """
        run = self.unsaved(agent, request, **options)
        if run.idempotency_key is None:
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

    def unsaved(
        self, agent: str, request: Payload | None, **options: Unpack[RunOptions]
    ) -> AgentRun:
        """The run that `enqueue()` is to insert.

        Raises:
            PayloadError: as `enqueue()`.
        """
        given: RunOptions = {**DEFAULT_OPTIONS, **options}
        key, delay = given["idempotency_key"], given["delay_seconds"]
        return self.model(
            agent=label(agent, "the agent's name"),
            request=request,
            mode=given["mode"],
            agent_version=label(given["agent_version"], "the agent's version"),
            idempotency_key=label(key, "the idempotency key") if key else None,
            requested_by=label(given["requested_by"], "requested_by"),
            correlation_id=label(given["correlation_id"], "the correlation id"),
            trace_context=trace_context(),
            available_at=given["available_at"] or (from_now(delay) if delay else Now()),
            woken_at=Now() if given["woken"] else None,
        )

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

    def claim(
        self,
        uuid: UUID,
        owner: str,
        served: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[AgentRun, Claim] | None:
        """Take a QUEUED run that is due: RUNNING, a new epoch, a lease that begins now.

        A message that is early, late, stale or a duplicate finds nothing to claim. A run whose
        journal holds an unresolved write is dead-lettered instead, whatever its columns say.
        `served` are the agents of the claiming process with their versions (None: whatever comes);
        a run of another agent or version is left to others. `limits` are the agents that may have only
        so many runs at a time: of one that has them, a run is put in line. Returns None where nothing
        was claimed.
        """
        limits = limits or {}
        for agent in self.filter(uuid=uuid, agent__in=limits).values_list("agent", flat=True):
            if self.has_free_slot(agent, limits[agent]):
                make_slots(agent)
        while True:
            run, claim = self._try(uuid, owner, served, limits)
            if run is None:
                return None
            if claim is not None:
                run.refresh_state()
                return run, claim
            # Who left a slot since did not see this run in line.
            if not self.has_free_slot(run.agent, limits[run.agent]):
                return None

    def _try(
        self, uuid: UUID, owner: str, served: Mapping[str, str] | None, limits: Mapping[str, int]
    ) -> tuple[AgentRun | None, Claim | None]:
        """Claim; a run without a claim was put in line."""
        with transaction.atomic(using=self.db):
            run = lock(self.for_judgement().filter(uuid=uuid)).first()
            if run is None or not self.due().filter(pk=run.pk).exists():
                return None, None
            if served is not None and served.get(run.agent) != run.agent_version:
                run.decline(owner, served.get(run.agent))
                return None, None
            most = limits.get(run.agent)
            try:
                free = most is None or self.hold_free_slot(run.agent, most)
            except SlotsHeld as held:
                logger.warning("run %s is put in line: %s", run.uuid, held)
                run.wait_for_slot()
                return None, None
            if not free:
                run.wait_for_slot()
                return run, None
            claim = run.take(owner)
            return (run, claim) if claim is not None else (None, None)

    def take_unwoken(
        self, limit: int, *, limited: Collection[str] = (), unlimited: Collection[str] = ()
    ) -> list[UUID]:
        """Mark up to `limit` due runs that nobody took as woken now, and return their uuids.

        Not those of `limited` agents, which have a line; and those in line of agents that have become
        `unlimited`.
        """
        return self._take(self.to_wake(limited, unlimited), limit, woken_at=Now())

    def to_wake(self, limited: Collection[str], unlimited: Collection[str]) -> AgentRunQuerySet:
        runs = self.unwoken().exclude(agent__in=limited) if limited else self.unwoken()
        if self.in_line().filter(agent__in=unlimited).exists():
            runs |= self.due().in_line().filter(agent__in=unlimited)
        return runs

    def put_in_line(self, limited: Collection[str], limit: int) -> int:
        """Put up to `limit` due runs of these agents in line that nobody took. Returns how many.

        After WAKE_AGAIN_SECONDS, however long they have been due: most of that time they were in line,
        and no wake-up was sent. There are no more wake-ups than free slots.
        """
        not_taken = Q(woken_at__isnull=True) | Q(woken_at__lte=from_now(-conf.WAKE_AGAIN_SECONDS))
        missed = self.due().filter(not_taken, agent__in=limited, waits_for_slot=False)
        return len(self._take(missed, limit, waits_for_slot=True))

    def take_in_line(self, agent: str, most: int, limit: int | None = None) -> list[UUID]:
        """Mark who is next in this agent's line as woken now, one for each free slot."""
        free = most - self.taken_slots(agent, most)
        free = free if limit is None else min(free, limit)
        if free < 1:
            return []
        return self._take(self.due().in_line().filter(agent=agent), free, woken_at=Now())

    def take_unasked(self, verifiable: Q, limit: int) -> list[UUID]:
        """Mark up to `limit` of these runs in doubt as woken now, and return their uuids."""
        return self._take(
            self.unasked().filter(verifiable), limit, order="finished_at", woken_at=Now()
        )

    def _take(
        self, runs: AgentRunQuerySet, limit: int, *, order: str = "available_at", **columns: Any
    ) -> list[UUID]:
        """Write these columns to the first of these runs that nobody else holds."""
        with transaction.atomic(using=self.db):
            # Others who take at this moment hold the first ones: there are more than the limit.
            first = runs.order_by(order).values_list("pk", flat=True)[: limit + BEHIND]
            free = lock(runs.filter(pk__in=list(first)).order_by(order), skip_locked=True)
            found = dict(free.values_list("pk", "uuid")[:limit])
            columns = {"waits_for_slot": False, **columns}
            self.filter(pk__in=list(found)).write_guarded(**columns)
        return list(found.values())


def long_woken(due: F) -> Q:
    """Whether a run that was woken for what is due since then may be woken again: later each time."""
    return Q(woken_at__lte=from_now(-conf.WAKE_AGAIN_SECONDS)) & (
        Q(woken_at__lte=Now() - (F("woken_at") - due))
        | Q(woken_at__lte=from_now(-conf.WAKE_AGAIN_MAX_SECONDS))
    )


def digest_of(payload: Payload | None) -> str:
    return payload.digest if payload is not None else ""


class AgentRunManager(Manager["AgentRun"].from_queryset(AgentRunQuerySet)):  # type: ignore[misc]
    pass
