from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.core.management.commands import flush
from django.db import connection
from pytest_django import DjangoDbBlocker

from agentruns import registry
from tests.harness.database import be_alone

pytest_plugins = ["tests.harness.fixtures", "tests.forms", "agentruns.testing.pytest_plugin"]

# Which tests run on which database: a test without any of these marks runs on each.
VENDORS_OF_MARK = {
    "server": {"postgresql", "mysql"},
    "postgres": {"postgresql"},
    "mariadb": {"mysql"},
    "sqlite": {"sqlite"},
}


# Tests that need a server which may not be there, and the variable that names it.
SERVERS = {"redis": "REDIS_URL", "rabbitmq": "RABBITMQ_URL"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples",
        type=int,
        default=25,
        help="how many orders of a run's transitions are tried (default: %(default)s)",
    )


def pytest_report_header() -> str:
    redis = "with" if os.environ.get("REDIS_URL") else "without"
    return f"database: {connection.vendor}, {redis} Redis"


def belongs_here(item: pytest.Item) -> bool:
    marks = [vendors for mark, vendors in VENDORS_OF_MARK.items() if item.get_closest_marker(mark)]
    return all(connection.vendor in vendors for vendors in marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another database's run is for: it is not missing here, so it is no skip."""
    elsewhere = [item for item in items if not belongs_here(item)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if belongs_here(item)]
    for mark, name in SERVERS.items():
        if not os.environ.get(name):
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=f"{name} names no server"))


def drop_leftover() -> None:
    """Drop the test database of a run that was killed, even if a process of it is still alive."""
    name = connection.settings_dict["TEST"]["NAME"] or f"test_{connection.settings_dict['NAME']}"
    be_alone(name)
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}")


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
    else:
        with django_db_blocker.unblock():
            drop_leftover()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End what the tests left connected, or the test database could not be dropped."""
    yield
    if connection.vendor != "sqlite":
        with django_db_blocker.unblock():
            be_alone(str(connection.settings_dict["NAME"]))


@pytest.fixture(scope="session", autouse=True)
def delete_rows_between_tests() -> Iterator[None]:
    """Empty the few rows of a test with DELETE: TRUNCATE makes new files for every table.

    Content types and permissions stay, so that they need not be made again.
    """
    kept = {"django_content_type", "auth_permission"}

    def sql_flush(style: Any, tables: Iterable[str], **options: Any) -> list[str]:
        emptied = sorted(set(tables) - kept)
        deletes = [f"DELETE FROM {connection.ops.quote_name(table)}" for table in emptied]
        if connection.vendor == "mysql":  # where nothing puts foreign keys off until the commit
            return ["SET foreign_key_checks = 0", *deletes, "SET foreign_key_checks = 1"]
        return deletes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.ops, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *args, **options: None)
        yield


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """Let each test register agents of its own, and leave none behind."""
    with pytest.MonkeyPatch.context() as patch:  # its own: a test may undo its `monkeypatch`
        patch.setattr(registry, "_agents", dict(registry._agents))
        yield


@pytest.fixture(autouse=True)
def own_heartbeat() -> Iterator[None]:
    """Let no heartbeat go on in the next test: a segment does not wait for the end of its own."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("agentruns-heartbeat"):
            thread.join(timeout=30)
