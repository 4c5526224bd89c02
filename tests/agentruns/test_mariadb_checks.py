from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from .test_checks import ids, ids_on, ids_with, patient_cluster  # noqa: F401

MARIADB = {"ENGINE": "django.db.backends.mysql", "OPTIONS": {}}
ON = {"databases": ["default"]}


def with_options(**options: Any) -> list[str]:
    return ids_on({**MARIADB, "OPTIONS": options})


@pytest.mark.parametrize("level", ["repeatable read", "serializable", "read uncommitted", None])
def test_E020_an_isolation_in_which_a_guard_judges_old_rows(level: str | None) -> None:
    assert with_options(isolation_level=level) == ["E020"]


@pytest.mark.parametrize("options", [{}, {"isolation_level": "Read Committed"}, {"client_flag": 6}])
def test_what_django_does_by_itself_is_right(options: dict[str, Any]) -> None:
    assert with_options(**options) == []


def test_E021_a_connection_that_counts_changed_rows() -> None:
    assert with_options(client_flag=4) == ["E021"]


def session(setting: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET {setting}")


@pytest.mark.mariadb
class TestWhatTheServerSays:
    @pytest.fixture(autouse=True)
    def own_session(self, transactional_db: None) -> Iterator[None]:
        yield
        connection.close()

    def test_our_settings_are_in_order(self) -> None:
        assert ids(**ON) == []
        assert ids() == []

    @pytest.mark.parametrize("zone", ["'+02:00'", "'-00:30'"])
    def test_E022_a_clock_in_another_zone(self, zone: str) -> None:
        session(f"time_zone = {zone}")
        assert ids(**ON) == ["E022"]

    def test_E022_a_zone_that_django_takes_for_this_database(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "timezone_name", "Europe/Berlin")
        assert ids(**ON) == ["E022"]

    def test_W009_a_transaction_that_may_stay_open_for_ever(self) -> None:
        session("idle_transaction_timeout = 0")
        assert ids(**ON) == ["W009"]

    def test_W021_a_server_that_takes_less_than_the_largest_payload(self, settings: Any) -> None:
        settings.AGENTRUNS = {}
        assert ids(**ON) == ["W021"]


@pytest.mark.parametrize(
    ("flush", "found"), [(0, ["agentruns.W020"]), (1, []), (2, ["agentruns.W020"])]
)
def test_W020_a_server_that_does_not_flush_each_commit(flush: int, found: list[str]) -> None:
    from agentruns.mariadb import unflushed_commits

    assert [message.id for message in unflushed_commits(flush)] == found
