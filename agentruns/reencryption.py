from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import models, transaction
from django.db.models import Q, Value
from django.db.models.functions import Coalesce, Length

from .conf import conf
from .encryption import is_current
from .exceptions import PayloadUnreadable
from .fields import FORMAT, Payload, PayloadField
from .guard import lock
from .models import AgentRun, Event, Step

# Rows are held no longer than it takes to write so many characters anew: a heartbeat may wait for them.
CHARACTERS_AT_ONCE = 2_000_000

TABLES: tuple[type[models.Model], ...] = (AgentRun, Step, Event)


@dataclass
class ReencryptionReport:
    """Rows looked at; values written anew; what was left: held by somebody, or unreadable."""

    rows: int = 0
    written: int = 0
    held: int = 0
    unreadable: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return vars(self)


def reencrypt(
    *,
    batch_size: int = 100,
    dry_run: bool = False,
    progress: Callable[[str, int, ReencryptionReport], None] = lambda table, pk, report: None,
) -> ReencryptionReport:
    """Write every payload anew that the first of ENCRYPTION_KEYS has not encrypted.

    Without keys, nothing is written but what is encrypted is reported as unreadable. A batch is a
    transaction (several, where its payloads are big), which passes by rows that somebody else holds:
    they are counted, and another call takes them. If the process dies here, another call begins
    again and finds less to write.
    `progress` is told the table, the last primary key and the report after each batch.
    """
    report = ReencryptionReport()
    for table in TABLES:
        after = 0
        while pks := _next(table, after, batch_size):
            after = pks[-1]
            for some in _in_parts(table, pks):
                with transaction.atomic(using=conf.DATABASE):
                    _rewrite(table, some, report, dry_run)
            progress(table._meta.model_name or "", after, report)
    return report


def _columns(table: type[models.Model]) -> list[str]:
    return [f.name for f in table._meta.concrete_fields if isinstance(f, PayloadField)]


def _next(table: type[models.Model], after: int, size: int) -> list[int]:
    some = Q()
    for name in _columns(table):
        some |= Q(**{f"{name}__isnull": False})
    rows = table._base_manager.filter(some, pk__gt=after).order_by("pk")
    return list(rows.values_list("pk", flat=True)[:size])


def _in_parts(table: type[models.Model], pks: list[int]) -> Iterator[list[int]]:
    """Divide a batch by the size of what its rows hold; one row is never divided."""
    size: Any = Value(0)
    for name in _columns(table):
        size = size + Coalesce(Length(name), 0)
    rows = table._base_manager.filter(pk__in=pks).order_by("pk")
    part: list[int] = []
    held = 0
    for pk, characters in rows.annotate(size=size).values_list("pk", "size"):
        if part and held + characters > CHARACTERS_AT_ONCE:
            yield part
            part, held = [], 0
        part.append(pk)
        held += characters
    if part:
        yield part


def _rewrite(
    table: type[models.Model], pks: list[int], report: ReencryptionReport, dry_run: bool
) -> None:
    manager = table._base_manager
    found = list(lock(manager.filter(pk__in=pks), skip_locked=True).values_list("pk", flat=True))
    report.held += len(pks) - len(found)
    report.rows += len(found)
    for row in manager.filter(pk__in=found).values("pk", *_columns(table)):
        pk = row.pop("pk")
        columns = {name: _anew(table, pk, name, old, report) for name, old in row.items()}
        changed = {name: payload for name, payload in columns.items() if payload is not None}
        report.written += len(changed)
        if changed and not dry_run:
            rows: Any = manager.filter(pk=pk)
            # The value stays what it is, so that no transition is needed.
            getattr(rows, "write_guarded", rows.update)(**changed)


def _anew(
    table: type[models.Model],
    pk: int,
    name: str,
    payload: Payload | None,
    report: ReencryptionReport,
) -> Payload | None:
    """What is to be written in place of this payload; None where it stays."""
    if payload is None or is_current(payload.text):
        return None
    try:
        return Payload(FORMAT + payload.as_json)
    except PayloadUnreadable as error:
        where = {"table": table._meta.model_name, "pk": pk, "column": name}
        report.unreadable.append(where | {"why": str(error)})
        return None
