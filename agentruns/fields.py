from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import DataError, models

from .conf import conf
from .encryption import ENCRYPTED, decrypted, encrypted
from .exceptions import PayloadError, PayloadUnreadable
from .raised import class_name

FORMAT = "1:"
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Payload:
    """A JSON value as text: a format version, then JSON in ASCII; or, as it is stored, encrypted.

    ASCII carries NUL bytes and lone surrogates through databases whose text can't hold them. NaN and
    the infinities, which JSON does not have, are kept where a step or a run returns them, written as
    Python's `json` writes them (`NaN`, `Infinity`). A request, an answer and what a person types may
    not hold them, and commands print them as the strings "NaN", "Infinity" and "-Infinity".
    """

    text: str

    @classmethod
    def given(cls, value: object) -> Payload:
        """Encode what a run is given from outside: as `of`, without NaN and infinities."""
        return cls.of(value, finite=True)

    @classmethod
    def of(cls, value: object, *, finite: bool = False) -> Payload:
        """Encode a JSON value: None, bool, int, float, str, list or tuple, dict with str keys.

        Raises:
            PayloadError: another type, a key that is no string, more than MAX_DEPTH levels, more
                than MAX_PAYLOAD_BYTES, or, where it has to be finite, NaN or an infinity.
        """
        try:
            plain = as_read_once(value)
            text = FORMAT + json.dumps(
                plain, ensure_ascii=True, separators=(",", ":"), allow_nan=not finite
            )
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
            PayloadUnreadable: the stored text was damaged, no key fits it, or a newer version wrote it.
        """
        try:
            return json.loads(self.as_json)
        except (ValueError, RecursionError) as error:
            raise PayloadUnreadable(f"the payload can't be decoded: {error}") from error

    @property
    def as_json(self) -> str:
        """The value as JSON, decrypted.

        Raises:
            PayloadUnreadable: no key fits the stored text, it was damaged, or a newer version wrote it.
        """
        plain = decrypted(self.text) if self.text.startswith(ENCRYPTED) else self.text
        if not plain.startswith(FORMAT):
            raise PayloadUnreadable("the payload's format is unknown to this version")
        return plain[len(FORMAT) :]

    @property
    def stored(self) -> str:
        """The text for a column: encrypted where a key is configured."""
        return encrypted(self.text) if self.text.startswith(FORMAT) else self.text

    @property
    def shown(self) -> Any:
        """The value for a person's eyes; of one that can't be read, why."""
        try:
            return self.value
        except PayloadUnreadable as error:
            return {"unreadable": str(error)}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the value with its keys in order: equal values have equal digests."""
        canonical = json.dumps(self.value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def typed_json(text: str) -> Any:
    """Decode JSON that a person typed, and refuse what a decoder would alter without a word.

    Raises:
        ValueError: it is no JSON, a number is too large for a float, NaN or infinite, or an object has
            a key twice.
        RecursionError: it is nested too deep.
    """
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_finite,
        object_pairs_hook=_each_key_once,
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    if len(given) < len(pairs):
        [(twice, _count)] = Counter(name for name, _value in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} is given twice")
    return given


def as_read_once(value: object, depth: int = 0) -> object:
    """The value in plain dicts and lists: a class of somebody else may give others to who reads again.

    Refuses keys that `json` would turn into strings, and nesting that a decoder could not read.
    """
    if depth > MAX_DEPTH:
        raise PayloadError(f"the value is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return plain_dict(list(value.items()), depth)
    if isinstance(value, (list, tuple)):
        return [as_read_once(item, depth + 1) for item in value]
    return value


def plain_dict(items: list[tuple[object, object]], depth: int) -> dict[str, object]:
    plain = {}
    for key, item in items:
        if not isinstance(key, str):
            raise PayloadError(f"a key of type {type(key).__name__} can't be kept: use a string")
        plain[str.__str__(key)] = as_read_once(item, depth + 1)
    if len(plain) != len(items):
        raise PayloadError("two keys of a mapping are the same text")
    return plain


if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

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
            return value.stored
        raise TypeError(f"{self.name} takes a Payload, not {type(value).__name__}")

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Refuse what MariaDB would answer by hanging up, as if the connection had been lost.

        Raises:
            DataError: the payload takes more than a third of a packet; a statement may hold three.
        """
        prepared = super().get_db_prep_save(value, connection)
        if connection.vendor == "mysql" and isinstance(prepared, str):
            refuse_large_packet(prepared, connection)
        return prepared

    def to_python(self, value: Any) -> Payload | None:
        return Payload(value) if isinstance(value, str) else value

    def value_to_string(self, obj: models.Model) -> str:
        payload = self.value_from_object(obj)
        return payload.text if payload is not None else ""


# How many payloads a statement of ours may hold (MariaDB limits what a statement takes), and a size
# below which every server takes that many.
PACKETS = 3
SMALL_BYTES = 64 * 1024


def refuse_large_packet(text: str, connection: BaseDatabaseWrapper) -> None:
    """Refuse an ASCII text that, quoted, takes more than its share of a statement (MariaDB)."""
    if len(text) < SMALL_BYTES:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (most,) = cursor.fetchone()
    quoted = len(text) + sum(text.count(character) for character in "\\\"'")
    if quoted > most // PACKETS:
        raise DataError(
            f"the payload takes {quoted} bytes in a statement; the server's max_allowed_packet is {most}"
        )


def storable(text: object, limit: int = 2000) -> str:
    """A text that every database stores: for what a stranger wrote into an error message.

    NUL becomes U+FFFD, lone surrogates their escapes; what is over `limit` characters is cut. An
    object whose text can't be had is named by its type.
    """
    try:
        said = str.__str__(str(text))  # a plain string, whatever class its text is of
    except BaseException:  # whatever somebody else's class raises, it ends nothing here
        said = f"{class_name(text)} without a readable text"
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
