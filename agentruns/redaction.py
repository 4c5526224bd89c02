"""What the application's REDACT leaves out of what is shown, and of the texts that are kept.

The journal is not altered: a replay gets what was recorded. Encrypt it where it has to be kept from
readers of the database.
"""

from __future__ import annotations

import logging
from typing import Any

from django.utils.module_loading import import_string

from .conf import conf
from .fields import Payload, storable

logger = logging.getLogger(__name__)


def redacted(what: str, value: Any) -> Any:
    """This value as the configured function gives it for showing; all of it without a function.

    `what` is the column that it comes from (`request`, `arguments`, `result`, ...), `event` for the
    details of an event, `text` for an error, a reason or a note. A function that fails shows nothing.
    """
    if not conf.REDACT:
        return value
    try:
        answer = import_string(conf.REDACT)(what, value)
        Payload.of(answer)  # what is no JSON could not be shown
    except Exception as error:
        # Without its text, which may quote the value.
        logger.error("REDACT failed for %s: %s", what, type(error).__name__)
        return f"[not shown: REDACT failed with {type(error).__name__}]"
    return answer


def shown(what: str, payload: Payload | None) -> Any:
    """A payload for a person's eyes; of one that can't be read, why."""
    return None if payload is None else redacted(what, payload.shown)


def told(text: object) -> str:
    """The text of an error, a reason or a note, for a row or an event that keeps it."""
    return storable(redacted("text", storable(text)))
