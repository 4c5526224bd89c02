from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from settings.database import database


def setting_in_a_process(name: str, **environment: str) -> Any:
    code = f"import json; from settings import test; print(json.dumps(test.{name}, default=str))"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TEST_")}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        cwd=settings.BASE_DIR,
        capture_output=True,
        check=True,
    )
    return json.loads(answer.stdout)


def test_a_database_url_overrides_the_options_of_its_engine() -> None:
    assert database("sqlite:////srv/x?timeout=5")["OPTIONS"]["timeout"] == 5
    assert database("sqlite:////srv/x", {"timeout": 7})["OPTIONS"]["timeout"] == 7
    limit = "-c idle_in_transaction_session_timeout=60s"
    assert database("postgres://somebody@localhost/x")["OPTIONS"] == {"options": limit}


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_sqlite_flushes_each_commit_and_lets_readers_pass() -> None:
    with connection.cursor() as cursor:
        values = {
            name: cursor.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        }
    assert values == {"journal_mode": "wal", "synchronous": 2}


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_tests_on_sqlite_share_a_file() -> None:
    assert str(connection.settings_dict["NAME"]).endswith("test.sqlite3")


def test_a_test_hands_settings_to_the_processes_that_it_starts() -> None:
    cluster = setting_in_a_process("Q_CLUSTER", TEST_Q_CLUSTER='{"timeout": 2, "retry": 3}')
    assert (cluster["timeout"], cluster["retry"], cluster["orm"]) == (2, 3, "default")
    assert (
        setting_in_a_process("AGENTRUNS", TEST_AGENTRUNS='{"MAX_REQUEUES": 0}')["MAX_REQUEUES"] == 0
    )


def test_a_test_chooses_the_broker_of_the_processes_that_it_starts() -> None:
    cluster = setting_in_a_process("Q_CLUSTER", TEST_BROKER="redis", REDIS_URL="redis://somewhere")
    assert cluster["redis"] == "redis://somewhere"
    assert "orm" not in cluster


def test_no_settings_execute_tasks_synchronously() -> None:
    assert not settings.Q_CLUSTER.get("sync")
    assert settings.Q_CLUSTER["retry"] > settings.Q_CLUSTER["timeout"]
