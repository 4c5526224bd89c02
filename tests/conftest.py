from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.core.management.commands import flush
from django.db import connection
from pytest_django import DjangoDbBlocker

pytest_plugins = ["tests.harness.fixtures"]

# Which tests run on which database: a test without any of these marks runs on each.
VENDOR_OF_MARK = {"postgres": "postgresql", "sqlite": "sqlite"}


def pytest_report_header() -> str:
    redis = "with" if os.environ.get("REDIS_URL") else "without"
    return f"database: {connection.display_name}, {redis} Redis"


def belongs_here(item: pytest.Item) -> bool:
    vendors = [vendor for mark, vendor in VENDOR_OF_MARK.items() if item.get_closest_marker(mark)]
    return not vendors or connection.vendor in vendors


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another database's run is for: it is not missing here, so it is no skip."""
    elsewhere = [item for item in items if not belongs_here(item)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if belongs_here(item)]
    if not os.environ.get("REDIS_URL"):
        for item in items:
            if item.get_closest_marker("redis"):
                item.add_marker(pytest.mark.skip(reason="REDIS_URL names no Redis server"))


def end_other_connections() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def drop_leftover() -> None:
    """Drop the test database of a run that was killed, even if a process of it is still alive."""
    name = connection.settings_dict["TEST"]["NAME"] or f"test_{connection.settings_dict['NAME']}"
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)} WITH (FORCE)")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Give the run a database that threads and processes share, and that no other run uses."""
    if connection.vendor == "sqlite":
        file = tmp_path_factory.mktemp("database") / "test.sqlite3"
        connection.settings_dict["TEST"]["NAME"] = str(file)
    elif connection.vendor == "postgresql":
        with django_db_blocker.unblock():
            drop_leftover()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End what the tests left connected, or the test database could not be dropped."""
    yield
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock():
            end_other_connections()


@pytest.fixture(scope="session", autouse=True)
def delete_rows_between_tests() -> Iterator[None]:
    """Empty the few rows of a test with DELETE: TRUNCATE makes new files for every table.

    Content types and permissions stay, so that they need not be made again.
    """
    kept = {"django_content_type", "auth_permission"}

    def sql_flush(style: Any, tables: Iterable[str], **options: Any) -> list[str]:
        emptied = sorted(set(tables) - kept)
        return [f"DELETE FROM {connection.ops.quote_name(table)}" for table in emptied]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.ops, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *args, **options: None)
        yield
