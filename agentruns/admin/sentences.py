"""Sentences of ours that hold what strangers wrote, so that nothing of theirs passes for our words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from .payloads import harmless

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


def named(text: object) -> SafeString:
    """A name that somebody gave: it turns nothing round that stands beside it."""
    return format_html("<bdi>{}</bdi>", harmless(str(text)))


def quoted(text: object) -> SafeString:
    """What somebody wrote, such as an error or a reason, in quotes and set apart by its looks."""
    return format_html('<q class="agentruns-theirs"><bdi>{}</bdi></q>', harmless(str(text)))


def sentence(said: str, /, **values: str | _StrPromise | int) -> SafeString:
    """A translated sentence with its values, each of them escaped unless it is safe."""
    shown = {
        name: value if isinstance(value, int) else conditional_escape(value)
        for name, value in values.items()
    }
    return mark_safe(conditional_escape(said) % shown)  # noqa: S308


def joined(sentences: Iterable[str]) -> SafeString:
    return format_html_join(" ", "{}", ((said,) for said in sentences if said))
