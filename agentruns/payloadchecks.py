"""System checks about payloads at rest and in logs."""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, register
from django.core.exceptions import ImproperlyConfigured

from .checks import error, fits, is_dictionary, warning
from .conf import Conf, conf
from .encryption import configured_keys, fernet


@register("agentruns")
def check_encryption(**_: Any) -> list[CheckMessage]:
    """Judge ENCRYPTION_KEYS, without saying what they are."""
    if not is_dictionary() or not fits(conf.ENCRYPTION_KEYS, Conf.ENCRYPTION_KEYS.default):
        return []
    if not any(configured_keys()):
        return []
    try:
        fernet(configured_keys())
    except ImproperlyConfigured as problem:
        hint = (
            "Make a key with `python -c 'from cryptography.fernet import Fernet; "
            "print(Fernet.generate_key().decode())'` and keep it where your other secrets are."
        )
        return [error("E012", f"Payloads can't be encrypted: {problem}.", hint)]
    return []


@register("agentruns")
def check_sql_log(**_: Any) -> list[CheckMessage]:
    """With DEBUG, Django logs each statement with its parameters, where that logger is on."""
    if not settings.DEBUG:
        return []
    sql = logging.getLogger("django.db.backends")
    if not (sql.isEnabledFor(logging.DEBUG) and sql.hasHandlers()):
        return []
    return [
        warning(
            "W010",
            "DEBUG is on and the logger django.db.backends is at level DEBUG: requests, arguments and "
            "results are written to the log with every SQL statement.",
            "Turn DEBUG off, or set that logger's level to INFO.",
        )
    ]
