"""System checks. Their ids are stable: silence one with SILENCED_SYSTEM_CHECKS."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, transaction
from django.utils.module_loading import import_string

from .conf import Conf, conf, overrides

DJANGO_Q = "agentruns.dispatch.django_q."

ABOVE_ZERO = frozenset(
    {
        "LEASE_SECONDS",
        "HEARTBEAT_SECONDS",
        "MAX_STEP_SECONDS",
        "WAKE_AGAIN_SECONDS",
        "WAKE_AGAIN_MAX_SECONDS",
    }
)
# What the history's own lines need: without, no transition could be written.
LEAST_PAYLOAD_BYTES = 10_000
# A delay that is doubled, and its maximum.
DOUBLED = (
    ("RETRY_BACKOFF_SECONDS", "RETRY_BACKOFF_MAX_SECONDS"),
    ("WAKE_AGAIN_SECONDS", "WAKE_AGAIN_MAX_SECONDS"),
)


@register("agentruns")
def check_settings(**_: Any) -> list[CheckMessage]:
    """Judge AGENTRUNS: keys, types, ranges; then, if those are right, what contradicts what."""
    if not is_dictionary():
        return [error("E002", "AGENTRUNS is not a dictionary.", "Write AGENTRUNS = {...}.")]
    found = [*unknown_keys(), *wrong_values()]
    return (
        found
        if any(message.id != "agentruns.E001" for message in found)
        else [
            *found,
            *contradictions(),
            *unusable_paths(),
        ]
    )


def is_dictionary() -> bool:
    """Whether settings can be read at all; if not, no other check has anything to say."""
    return isinstance(overrides(), dict)


def unknown_keys() -> Iterator[CheckMessage]:
    for name in sorted(set(overrides()) - set(Conf.names()), key=str):
        yield error(
            "E001",
            f"AGENTRUNS has the key {name!r}, which is no setting.",
            f"The settings are {', '.join(Conf.names())}.",
        )


def wrong_values() -> Iterator[CheckMessage]:
    for name in Conf.names():
        value, default = getattr(conf, name), getattr(Conf, name).default
        if not fits(value, default):
            said = "a value not shown here" if name == "ENCRYPTION_KEYS" else repr(value)
            yield error(
                "E002",
                f"AGENTRUNS[{name!r}] is {said}, which is of the wrong type.",
                f"It must be of the type of its default, {default!r}.",
            )
        elif is_number(value) and (value < 0 or (value == 0 and name in ABOVE_ZERO)):
            least = "above zero" if name in ABOVE_ZERO else "zero or above"
            yield error("E003", f"AGENTRUNS[{name!r}] is {value!r}.", f"It must be {least}.")
        elif name == "MAX_PAYLOAD_BYTES" and value < LEAST_PAYLOAD_BYTES:
            hint = f"It must be at least {LEAST_PAYLOAD_BYTES}, which the history's own lines need."
            yield error("E003", f"AGENTRUNS[{name!r}] is {value!r}.", hint)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fits(value: object, default: object) -> bool:
    """Whether a value is of the default's type; whole numbers serve as seconds."""
    if isinstance(default, float):
        return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    if isinstance(default, list):
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    return type(value) is type(default)


def contradictions() -> Iterator[CheckMessage]:
    lease, heartbeat = conf.LEASE_SECONDS, conf.HEARTBEAT_SECONDS
    if heartbeat >= lease:
        yield error(
            "E004",
            f"HEARTBEAT_SECONDS ({heartbeat}) is not below LEASE_SECONDS ({lease}): every run would "
            "be reaped while it works.",
            "Renew at least three times in a lease.",
        )
    elif heartbeat > lease / 3:
        yield warning(
            "W001",
            f"HEARTBEAT_SECONDS ({heartbeat}) is more than a third of LEASE_SECONDS ({lease}): one "
            "late renewal may cost a run its lease.",
            "Renew at least three times in a lease.",
        )
    if lease > conf.MAX_STEP_SECONDS:
        yield error(
            "E005",
            f"MAX_STEP_SECONDS ({conf.MAX_STEP_SECONDS}) is below LEASE_SECONDS ({lease}).",
            "A step may last at least as long as a lease does.",
        )
    for base, maximum in DOUBLED:
        if getattr(conf, maximum) < getattr(conf, base):
            yield warning("W008", f"{maximum} is below {base}.", f"Raise {maximum}.")


def unusable_paths() -> Iterator[CheckMessage]:
    paths = []
    if wakes_by_django_q() and not apps.is_installed("django_q"):
        yield error(
            "E015",
            "django-q2 is to wake the runs (DISPATCHER), but 'django_q' is not in INSTALLED_APPS: no "
            "worker is told of any run.",
            "Add 'django_q' to INSTALLED_APPS, or name another DISPATCHER.",
        )
    else:
        paths += [("DISPATCHER", conf.DISPATCHER, "wake")]
    paths += [("FAILURE_CLASSIFIERS", path, "") for path in conf.FAILURE_CLASSIFIERS]
    paths += [("REDACT", conf.REDACT, "")] if conf.REDACT else []
    for name, path, method in paths:
        hint = "Correct the dotted path; what it names must be in an installed app."
        try:
            found = import_string(path)
        except Exception as problem:
            why = f"can't be imported: {problem}"
            missing = getattr(problem, "name", None)
            if missing and not path.startswith(f"{missing}."):
                hint = f"Install {missing}, which it needs."
        else:
            if callable(found) and (not method or callable(getattr(found, method, None))):
                continue
            why = f"has no method {method}()" if method else "can't be called"
        yield error("E006", f"{path!r}, which {name} names, {why}.", hint)


def wakes_by_django_q() -> bool:
    return is_dictionary() and str(conf.DISPATCHER).startswith(DJANGO_Q)


@register("agentruns")
def check_database_settings(**_: Any) -> list[CheckMessage]:
    """Judge what can be known about the database without asking it."""
    if not settings.USE_TZ:
        return [error("E009", "USE_TZ is False.", "Leases and delays need times with a zone.")]
    if not is_dictionary() or not isinstance(conf.DATABASE, str):
        return []
    if conf.DATABASE not in settings.DATABASES:
        known = ", ".join(settings.DATABASES)
        return [
            error("E007", f"AGENTRUNS['DATABASE'] is {conf.DATABASE!r}.", f"There are: {known}.")
        ]
    entry = settings.DATABASES[conf.DATABASE]
    found = list(sqlite_options(entry)) if entry["ENGINE"].endswith("sqlite3") else []
    if entry.get("AUTOCOMMIT") is False:
        found.append(
            error(
                "E016",
                f"AUTOCOMMIT is off for {conf.DATABASE!r}: what is written outside atomic() is never "
                "committed, and no run can be executed.",
                "Leave it on, which is the default.",
            )
        )
    if entry.get("ATOMIC_REQUESTS"):
        found.append(
            warning(
                "W003",
                f"ATOMIC_REQUESTS is on for {conf.DATABASE!r}: run() is refused in every view.",
                "Views that call run() need @transaction.non_atomic_requests; enqueue() does not.",
            )
        )
    return found


def sqlite_options(entry: dict[str, Any]) -> Iterator[CheckMessage]:
    options = entry.get("OPTIONS", {})
    if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield error(
            "E008",
            "SQLite has no row locks, and its transactions begin as reads: two workers could both "
            "take a run.",
            f"Set DATABASES[{conf.DATABASE!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
        )
    commands = str(options.get("init_command", ""))
    if re.search(r"synchronous\s*[=(]\s*(NORMAL|OFF|[01])\b", commands, re.IGNORECASE):
        yield unsafe_sqlite()


def unsafe_sqlite() -> CheckMessage:
    return warning(
        "W002",
        "SQLite does not flush each commit to the disk: after a power cut, a fence may be gone and "
        "its write be repeated.",
        "Use PRAGMA synchronous = FULL.",
    )


@register("agentruns", Tags.database)
def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Ask the database what it can do; with `check --database` and before `migrate`."""
    if not databases or not is_dictionary() or conf.DATABASE not in databases:
        return []
    connection = connections[conf.DATABASE]
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous")
            (synchronous,) = cursor.fetchone()
        declared = any(message.id == "agentruns.W002" for message in check_database_settings())
        return [unsafe_sqlite()] if synchronous < 2 and not declared else []
    features = connection.features
    if features.supports_transactions and features.has_select_for_update_skip_locked:
        if connection.vendor != "postgresql":
            return []
        return [*other_isolation(), *unbounded_transactions()]
    return [
        error(
            "E010",
            f"{connection.display_name} can't lock rows and skip those that are locked.",
            "Use PostgreSQL, MySQL 8.0.1 or MariaDB 10.6 (with InnoDB), or later ones.",
        )
    ]


def other_isolation() -> Iterator[CheckMessage]:
    """A statement alone has the session's level, one in `atomic()` the connection's."""
    connection, levels = connections[conf.DATABASE], set()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('default_transaction_isolation')")
        levels.add(cursor.fetchone()[0])
        with transaction.atomic(using=conf.DATABASE):
            cursor.execute("SELECT current_setting('transaction_isolation')")
            levels.add(cursor.fetchone()[0])
    if levels != {"read committed"}:
        yield error(
            "E013",
            f"PostgreSQL's isolation level is {', '.join(sorted(levels))}: a guard that waited for a "
            "lock would judge the run as it was before.",
            "Use READ COMMITTED, which is the default, for the connection that holds the runs.",
        )


def unbounded_transactions() -> Iterator[CheckMessage]:
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout')")
        (timeout,) = cursor.fetchone()
    if timeout == "0":
        yield warning(
            "W009",
            "PostgreSQL lets a transaction stay open for ever: a process that is paused inside one "
            "(a stopped container, a suspended machine) keeps its run locked, and the reaper passes "
            "by that run.",
            "ALTER ROLE ... SET idle_in_transaction_session_timeout = '1min', or set it in the "
            f"'options' of DATABASES[{conf.DATABASE!r}]['OPTIONS'].",
        )


def error(number: str, message: str, hint: str) -> CheckMessage:
    return Error(message, hint=hint, id=f"agentruns.{number}")


def warning(number: str, message: str, hint: str) -> CheckMessage:
    return Warning(message, hint=hint, id=f"agentruns.{number}")
