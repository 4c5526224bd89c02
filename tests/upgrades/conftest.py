from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.harness.database import be_alone


@pytest.fixture
def own_database(transactional_db: None, tmp_path: Path) -> Iterator[None]:
    """Put an empty database, without a table, in the place of the tests' own.

    It is also that of the processes that a test starts.
    """
    former = connection.settings_dict["NAME"]
    connection.close()
    name = connection.settings_dict["NAME"] = make_database(former, tmp_path)
    yield
    drop_database(name)
    connection.settings_dict["NAME"] = former


def make_database(beside: str, folder: Path) -> str:
    if connection.vendor == "sqlite":
        return str(folder / "upgrade.sqlite3")
    name = f"{beside}_upgrade"
    drop_database(name)
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {connection.ops.quote_name(name)}")
    return name


def drop_database(name: str) -> None:
    connection.close()
    if connection.vendor != "sqlite":
        be_alone(name)
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}")
