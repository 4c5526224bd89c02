"""Payloads for a page: cut by the database, so that a megabyte is neither sent nor drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Case, IntegerField, Q, TextField, Value, When
from django.db.models.functions import Cast, Left, Length
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from ..conf import conf
from ..encryption import ENCRYPTED
from ..exceptions import PayloadUnreadable
from ..fields import FORMAT, Payload
from ..redaction import redacted

if TYPE_CHECKING:
    from django.db.models import Expression, Model
    from django.http import HttpResponse

# Characters of JSON that a page shows of one payload; more of the write that the fence stands for.
SHOWN = 4_000
SHOWN_FENCED = 100_000
# Characters of an encrypted payload that are read for a page.
WHOLE = 100_000
UNPRINTED = re.compile(r"[^\n\x20-\x7e]")
# What no page of ours needs, in any language: controls, and what turns the writing round or hides.
HIDING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a payload, harmless; `size` is that of the whole."""

    text: str
    size: int
    cut: bool


def excerpt_columns(names: Iterable[str], fenced: int | None = None) -> dict[str, Expression]:
    """Annotations that read the beginnings and the sizes of these payload columns.

    What is encrypted, or is to be redacted, can only be read as a whole; it is, up to a limit of its
    own.
    """
    columns: dict[str, Expression] = {"excerpt_limit": limited(fenced, SHOWN, SHOWN_FENCED)}
    for name in names:
        columns[f"{name}_size"] = Length(name)
        columns[f"{name}_excerpt"] = Case(
            *cut_by_the_database(name, fenced),
            When(
                **{f"{name}_size__lte": limited(fenced, WHOLE, conf.MAX_PAYLOAD_BYTES * 2)},
                then=Cast(name, TextField()),
            ),
            default=Value(""),
            output_field=TextField(),
        )
    return columns


def cut_by_the_database(name: str, fenced: int | None) -> list[When]:
    if conf.REDACT:
        return []
    plain = ~Q(**{f"{name}__startswith": ENCRYPTED})
    return [When(plain, then=Left(name, limited(fenced, SHOWN, SHOWN_FENCED)))]


def limited(fenced: int | None, limit: int, limit_fenced: int) -> Expression:
    """So many characters, or more of the row with this primary key."""
    return Case(
        When(pk=fenced if fenced is not None else -1, then=Value(limit_fenced)),
        default=Value(limit),
        output_field=IntegerField(),
    )


def excerpt(row: Model, name: str) -> Excerpt | None:
    """What `excerpt_columns` read of this column; None where the row has no such payload."""
    size, text = getattr(row, f"{name}_size"), getattr(row, f"{name}_excerpt")
    if size is None:
        return None
    if size and not text:
        return Excerpt(_("It is too long for this page: it must be read whole."), size, cut=True)
    if size > len(text):
        return Excerpt(harmless(text.removeprefix(FORMAT)), size, cut=True)
    shown, limit = readable(name, text), row.excerpt_limit  # type: ignore[attr-defined]
    cut = (text.startswith(ENCRYPTED) or bool(conf.REDACT)) and len(shown) > limit
    return Excerpt(harmless(shown[:limit] if cut else shown), size, cut)


def whole_value(row: Model, name: str) -> Any:
    """What `excerpt_columns` read of this column, decoded; None where that is not the whole."""
    size, text = getattr(row, f"{name}_size"), getattr(row, f"{name}_excerpt")
    if not text or size > len(text):
        return None
    try:
        return redacted(name, Payload(text).value)
    except PayloadUnreadable:
        return None


def harmless(text: str) -> str:
    """The text with what can't be seen as escapes: it can't reorder or hide what stands beside it."""
    return UNPRINTED.sub(lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text)


def made_harmless(response: HttpResponse) -> HttpResponse:
    """The page with such characters as escapes, whichever column, message or form they came from."""

    def escape(page: HttpResponse) -> None:
        page.content = HIDING.sub(lambda c: json.dumps(c[0])[1:-1], page.content.decode())

    if isinstance(response, TemplateResponse):
        response.add_post_render_callback(escape)
    return response


def readable(name: str, text: str) -> str:
    """The JSON with line breaks and letters instead of escapes; as it is stored, if damaged."""
    try:
        value: Any = Payload(text).value
    except PayloadUnreadable as damaged:
        why = _("It can't be read: %(why)s.") % {"why": damaged}
        return why if text.startswith(ENCRYPTED) or conf.REDACT else f"{why}\n{text}"
    return json.dumps(redacted(name, value), indent=2, ensure_ascii=False)
