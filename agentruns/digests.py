"""The digests of a journal: plain, or under a key of the run's own that is encrypted as payloads are.

Who reads the database can try out which short value has a plain digest. The key is made at the first
claim, when the journal is empty, and stays: a change of ENCRYPTION_KEYS only encrypts it anew, so
that a run's digests fit for as long as it lives, and no journal has digests of both kinds.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from .encryption import encrypts
from .exceptions import PayloadUnreadable
from .fields import Payload


def new_key() -> Payload | None:
    """What the first claim gives a run; None where payloads are not encrypted."""
    return Payload.of(secrets.token_hex(32)) if encrypts() else None


def read_key(stored: Payload | None) -> bytes:
    """The key of a run's digests; empty where they are plain.

    Raises:
        PayloadUnreadable: it can't be decrypted, or was damaged.
    """
    if stored is None:
        return b""
    try:
        return bytes.fromhex(stored.value)
    except (TypeError, ValueError) as error:
        raise PayloadUnreadable("the key of the run's digests was damaged") from error


def under(key: bytes, digest: str) -> str:
    """A plain digest as a journal has it."""
    if not (key and digest):
        return digest
    return hmac.new(key, digest.encode("ascii"), hashlib.sha256).hexdigest()
