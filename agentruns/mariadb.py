"""System checks of the settings without which MariaDB breaks a guard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, register
from django.db import connections

from .checks import error, is_dictionary, warning
from .conf import conf
from .fields import PACKETS

FOUND_ROWS = 2  # CLIENT.FOUND_ROWS of the protocol
UTC = frozenset({"+00:00", "UTC", "Etc/UTC"})


@register("agentruns")
def check_mariadb_options(**_: Any) -> list[CheckMessage]:
    """Judge what can be known without asking the server."""
    entry = settings.DATABASES.get(conf.DATABASE) if is_dictionary() else None
    if entry is None or not entry["ENGINE"].endswith("mysql"):
        return []
    return list(unsafe_options(entry.get("OPTIONS", {})))


def unsafe_options(options: dict[str, Any]) -> Iterator[CheckMessage]:
    level = options.get("isolation_level", "read committed")
    if str(level).lower() != "read committed":
        yield error(
            "E020",
            f"MariaDB's isolation level is {level!r} here: a guard that waited for a lock would judge "
            "what was there before it waited.",
            f"Set DATABASES[{conf.DATABASE!r}]['OPTIONS']['isolation_level'] = 'read committed', or "
            "leave it out.",
        )
    if not options.get("client_flag", FOUND_ROWS) & FOUND_ROWS:
        yield error(
            "E021",
            "'client_flag' takes back that MariaDB counts the rows that matched: an update that "
            "changes nothing would look like one that found nothing.",
            "Add CLIENT.FOUND_ROWS to it, or leave it out.",
        )


@register("agentruns", Tags.database)
def check_mariadb(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Ask the server; with `check --database` and before `migrate`."""
    if not databases or not is_dictionary() or conf.DATABASE not in databases:
        return []
    connection = connections[conf.DATABASE]
    if not getattr(connection, "mysql_is_mariadb", False):
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT IF(@@time_zone = 'SYSTEM', @@system_time_zone, @@time_zone),"
            " @@idle_transaction_timeout, @@innodb_flush_log_at_trx_commit, @@max_allowed_packet"
        )
        zone, idle_seconds, flush, packet = cursor.fetchone()
    return [
        *unsafe_clock(zone, connection.timezone_name),
        *unbounded_transactions(idle_seconds),
        *unflushed_commits(flush),
        *small_packets(packet),
    ]


def unsafe_clock(zone: str, expected: str) -> Iterator[CheckMessage]:
    if zone not in UTC or expected not in UTC:
        yield error(
            "E022",
            f"MariaDB's clock is in the zone {zone!r} and Django expects {expected!r}: leases and "
            "delays would be off, and jump with summer time.",
            f"Add \"SET time_zone = '+00:00'\" to DATABASES[{conf.DATABASE!r}]['OPTIONS']"
            "['init_command'], and set no TIME_ZONE for this database.",
        )


def unbounded_transactions(idle_seconds: int) -> Iterator[CheckMessage]:
    if idle_seconds == 0:
        yield warning(
            "W009",
            "MariaDB lets a transaction stay open for ever: a process that is paused inside one "
            "(a stopped container, a suspended machine) keeps its run locked, and the reaper passes "
            "by that run.",
            "SET GLOBAL idle_transaction_timeout = 60, or set it in the 'init_command' of "
            f"DATABASES[{conf.DATABASE!r}]['OPTIONS'].",
        )


def unflushed_commits(flush: int) -> Iterator[CheckMessage]:
    if flush != 1:
        yield warning(
            "W020",
            "MariaDB does not flush each commit to the disk: after a power cut, a fence may be gone "
            "and its write be repeated.",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1.",
        )


def small_packets(packet: int) -> Iterator[CheckMessage]:
    # Quoting may double what JSON needs quotation marks for; half as much again is generous.
    needed = PACKETS * conf.MAX_PAYLOAD_BYTES * 3 // 2
    if packet < needed:
        yield warning(
            "W021",
            f"MariaDB takes {packet} bytes in a statement (max_allowed_packet): payloads of more than "
            f"{packet // PACKETS} bytes are refused, though MAX_PAYLOAD_BYTES allows them.",
            f"SET GLOBAL max_allowed_packet = {needed}, or lower MAX_PAYLOAD_BYTES to "
            f"{packet // PACKETS * 2 // 3}.",
        )
