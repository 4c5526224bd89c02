"""Payloads at rest: encrypted with the first of ENCRYPTION_KEYS, read with any of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from .conf import conf
from .exceptions import PayloadUnreadable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

# What an encrypted payload begins with; a Fernet token follows.
ENCRYPTED = "2:"


def encrypted(plain: str) -> str:
    """A payload's text as it is stored: encrypted where a key is configured.

    Raises:
        ImproperlyConfigured: a key is none, or the library is not installed.
    """
    keys = configured_keys()
    if stores_plain(keys):
        return plain
    return ENCRYPTED + fernet(keys).encrypt(plain.encode("utf-8")).decode("ascii")


def decrypted(stored: str) -> str:
    """The plain text of a stored one that begins with ENCRYPTED.

    Raises:
        PayloadUnreadable: no configured key fits, it was damaged, or the keys are unusable.
    """
    keys = configured_keys()
    if not any(keys):
        raise PayloadUnreadable("the payload is encrypted, and ENCRYPTION_KEYS has no key")
    try:
        ciphers = fernet(keys)
    except ImproperlyConfigured as error:
        raise PayloadUnreadable(f"the payload is encrypted: {error}") from error
    from cryptography.fernet import InvalidToken

    try:
        return ciphers.decrypt(stored[len(ENCRYPTED) :].encode("utf-8")).decode("utf-8")
    except (InvalidToken, UnicodeDecodeError) as error:
        raise PayloadUnreadable(
            "the payload is encrypted with a key that is not configured, or was damaged"
        ) from error


def encrypts() -> bool:
    """Whether what is written now is encrypted."""
    return not stores_plain(configured_keys())


def is_current(stored: str) -> bool:
    """Whether this stored text is as it would be written now: by the first key, or plain without one."""
    keys = configured_keys()
    if stores_plain(keys) or not stored.startswith(ENCRYPTED):
        return stores_plain(keys) and not stored.startswith(ENCRYPTED)
    from cryptography.fernet import InvalidToken

    try:
        fernet(keys[:1]).decrypt(stored[len(ENCRYPTED) :].encode("utf-8"))
    except InvalidToken:
        return False
    return True


def configured_keys() -> tuple[str, ...]:
    return tuple(conf.ENCRYPTION_KEYS)


def stores_plain(keys: tuple[str, ...]) -> bool:
    """Whether new payloads are not encrypted: no key, or '' in the place of the one that would."""
    return not keys or keys[0] == ""


@cache
def fernet(keys: tuple[str, ...]) -> MultiFernet:
    """Encrypts with the first key, decrypts with any.

    Raises:
        ImproperlyConfigured: a key is none, or the library is not installed.
    """
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError as error:
        raise ImproperlyConfigured(
            "ENCRYPTION_KEYS needs the library cryptography: install django-nrllm[encryption]"
        ) from error
    made = []
    for number, key in enumerate(keys, start=1):
        if not key:
            continue
        try:
            made.append(Fernet(key))
        except (ValueError, TypeError):
            # Without the key, and without the error that may quote it.
            raise ImproperlyConfigured(
                f"number {number} of ENCRYPTION_KEYS is not a Fernet key"
            ) from None
    return MultiFernet(made)
