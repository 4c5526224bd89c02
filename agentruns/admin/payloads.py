"""Payloads for a page: cut by the database, so that a megabyte is neither sent nor drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Case, IntegerField, Value, When
from django.db.models.functions import Left, Length

from ..exceptions import PayloadUnreadable
from ..fields import FORMAT, Payload, storable

if TYPE_CHECKING:
    from django.db.models import Expression, Model

# Characters of JSON that a page shows of one payload; more of the write that the fence stands for.
SHOWN = 4_000
SHOWN_FENCED = 100_000


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a payload, harmless; `size` is that of the whole."""

    text: str
    size: int
    cut: bool


def excerpt_columns(names: Iterable[str], fenced: int | None = None) -> dict[str, Expression]:
    """Annotations that read the beginnings and the sizes of these payload columns."""
    limit = Case(
        When(pk=fenced if fenced is not None else -1, then=Value(SHOWN_FENCED)),
        default=Value(SHOWN),
        output_field=IntegerField(),
    )
    columns: dict[str, Expression] = {}
    for name in names:
        columns[f"{name}_excerpt"] = Left(name, limit)
        columns[f"{name}_size"] = Length(name)
    return columns


def excerpt(row: Model, name: str) -> Excerpt | None:
    """What `excerpt_columns` read of this column; None where the row has no such payload."""
    text: str | None = getattr(row, f"{name}_excerpt")
    if text is None:
        return None
    size = getattr(row, f"{name}_size")
    cut = size > len(text)
    shown = text.removeprefix(FORMAT) if cut else readable(text)
    return Excerpt(storable(shown, 2 * SHOWN_FENCED), size, cut)


def readable(text: str) -> str:
    """The JSON with line breaks and letters instead of escapes; as it is stored, if damaged."""
    try:
        value: Any = Payload(text).value
    except PayloadUnreadable:
        return text
    return json.dumps(value, indent=2, ensure_ascii=False)
