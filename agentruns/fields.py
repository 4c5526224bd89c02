from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models

from .conf import conf
from .exceptions import PayloadError, PayloadUnreadable

FORMAT = "1:"
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Payload:
    """A JSON value as it is stored: a format version, then JSON in ASCII.

    ASCII carries NUL bytes and lone surrogates through databases whose text can't hold them. NaN and
    the infinities are kept, written as Python's `json` writes them (`NaN`, `Infinity`).
    """

    text: str

    @classmethod
    def of(cls, value: object) -> Payload:
        """Encode a JSON value: None, bool, int, float, str, list or tuple, dict with str keys.

        Raises:
            PayloadError: another type, a key that is no string, more than MAX_DEPTH levels, or more
                than MAX_PAYLOAD_BYTES.
        """
        try:
            refuse_what_json_would_change(value)
            text = FORMAT + json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        except PayloadError:
            raise
        except Exception as error:  # also what a class of somebody else raises when it is read
            raise PayloadError(f"the value can't be kept as JSON: {storable(error)}") from error
        if len(text) > conf.MAX_PAYLOAD_BYTES:
            raise PayloadError(
                f"the value takes {len(text)} bytes as JSON; MAX_PAYLOAD_BYTES is "
                f"{conf.MAX_PAYLOAD_BYTES}: keep it elsewhere and pass a reference"
            )
        return cls(text)

    @property
    def value(self) -> Any:
        """Decode.

        Raises:
            PayloadUnreadable: the stored text was damaged, or a newer version wrote it.
        """
        if not self.text.startswith(FORMAT):
            raise PayloadUnreadable("the payload's format is unknown to this version")
        try:
            return json.loads(self.text[len(FORMAT) :])
        except (ValueError, RecursionError) as error:
            raise PayloadUnreadable(f"the payload can't be decoded: {error}") from error

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the value with its keys in order: equal values have equal digests."""
        canonical = json.dumps(self.value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def refuse_what_json_would_change(value: object, depth: int = 0) -> None:
    """Refuse keys that `json` would turn into strings, and nesting that a decoder could not read."""
    if depth > MAX_DEPTH:
        raise PayloadError(f"the value is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PayloadError(
                    f"a key of type {type(key).__name__} can't be kept: use a string"
                )
            refuse_what_json_would_change(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            refuse_what_json_would_change(item, depth + 1)


if TYPE_CHECKING:
    PayloadTextField = models.TextField[Payload | None, Payload | None]
else:
    PayloadTextField = models.TextField


class PayloadField(PayloadTextField):
    """A nullable column of `Payload`. Reading never fails; `Payload.value` may."""

    def __init__(self, **options: Any) -> None:
        options.update(null=True, blank=True, editable=False)
        super().__init__(**options)

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Payload | None:
        return None if value is None else Payload(value)

    def get_prep_value(self, value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, Payload):
            return value.text
        raise TypeError(f"{self.name} takes a Payload, not {type(value).__name__}")

    def to_python(self, value: Any) -> Payload | None:
        return Payload(value) if isinstance(value, str) else value

    def value_to_string(self, obj: models.Model) -> str:
        payload = self.value_from_object(obj)
        return payload.text if payload is not None else ""


def storable(text: object, limit: int = 2000) -> str:
    """A text that every database stores: for what a stranger wrote into an error message.

    NUL becomes U+FFFD, lone surrogates their escapes; what is over `limit` characters is cut. An
    object whose text can't be had is named by its type.
    """
    try:
        said = str(text)
    except Exception:
        said = f"{type(text).__name__} without a readable text"
    clean = said.replace("\x00", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "\u2026"


def label(text: str, what: str, limit: int = 200) -> str:
    """A short name given by a caller, unchanged, or an error.

    Raises:
        PayloadError: it is too long, or holds what a text column can't (NUL, a lone surrogate).
    """
    if not isinstance(text, str):
        raise PayloadError(f"{what} must be a string, not {type(text).__name__}")
    if len(text) > limit:
        raise PayloadError(f"{what} has {len(text)} characters; {limit} is the most")
    if storable(text, limit) != text:
        raise PayloadError(f"{what} holds a NUL byte or a lone surrogate")
    return text
