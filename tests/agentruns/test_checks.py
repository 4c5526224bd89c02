from __future__ import annotations

import logging
import sys
from typing import Any
from unittest.mock import patch

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as django_settings
from django.core.checks import INFO, CheckMessage, run_checks
from django.core.management import call_command
from django.db import connection
from django.test import modify_settings, override_settings
from django_q.models import Schedule

from agentruns.conf import Conf
from agentruns.encryption import fernet

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA synchronous = FULL"},
}


@pytest.fixture(autouse=True)
def patient_cluster(settings: Any) -> None:
    """The defaults of AGENTRUNS, and a cluster that fits them."""
    # By its own defaults, MariaDB takes less in a statement than the largest payload needs.
    settings.AGENTRUNS = {"MAX_PAYLOAD_BYTES": 2_000_000} if connection.vendor == "mysql" else {}
    settings.Q_CLUSTER = {**django_settings.Q_CLUSTER, "timeout": 900, "retry": 960}


def found(**options: Any) -> list[CheckMessage]:
    return [m for m in run_checks(**options) if str(m.id).startswith("agentruns.")]


def ids(**options: Any) -> list[str]:
    """The ids that a check gives; each with a hint."""
    messages = found(**options)
    assert all(message.hint for message in messages)
    return [str(message.id).removeprefix("agentruns.") for message in messages]


def ids_with(**agentruns: Any) -> list[str]:
    with override_settings(AGENTRUNS=agentruns):
        return ids()


def ids_on(entry: dict[str, Any]) -> list[str]:
    with patch.dict(django_settings.DATABASES, {"default": entry}):
        return ids()


def ids_in_cluster(**changes: Any) -> list[str]:
    with override_settings(Q_CLUSTER={**django_settings.Q_CLUSTER, **changes}):
        return ids()


def test_the_defaults_are_in_order() -> None:
    assert ids() == []


def test_ordinary_checks_ask_no_database() -> None:
    # Without the `db` fixtures, pytest-django fails whoever asks.
    run_checks()
    run_checks(include_deployment_checks=True)


def test_E001_a_key_that_is_no_setting() -> None:
    with override_settings(AGENTRUNS={"LEASE": 60}):
        (message,) = found()
    assert message.id == "agentruns.E001"
    assert "'LEASE'" in message.msg
    assert all(name in str(message.hint) for name in Conf.names())


@pytest.mark.parametrize(
    "value",
    [
        {"LEASE_SECONDS": "60"},
        {"LEASE_SECONDS": None},
        {"LEASE_SECONDS": True},
        {"LEASE_SECONDS": float("nan")},
        {"LEASE_SECONDS": float("inf")},
        {"MAX_REQUEUES": 2.5},
        {"DISPATCHER": None},
        {"FAILURE_CLASSIFIERS": "one.path"},
        {"FAILURE_CLASSIFIERS": [1]},
        {"DATABASE": None},
    ],
)
def test_E002_a_value_of_the_wrong_type(value: dict[str, Any]) -> None:
    assert "E002" in ids_with(**value)


def test_E002_settings_that_are_no_dictionary() -> None:
    with override_settings(AGENTRUNS=["LEASE_SECONDS"]):
        assert ids() == ["E002"]


@pytest.mark.parametrize(
    "value",
    [
        {"LEASE_SECONDS": 0},
        {"LEASE_SECONDS": -1},
        {"HEARTBEAT_SECONDS": 0},
        {"WAKE_AGAIN_SECONDS": 0},
        {"MAX_REQUEUES": -1},
        {"RETRY_BACKOFF_SECONDS": -0.5},
    ],
)
def test_E003_a_value_out_of_its_range(value: dict[str, Any]) -> None:
    assert ids_with(**value)[:1] == ["E003"]


def test_E003_zero_retries_are_allowed() -> None:
    assert "E003" not in ids_with(MAX_REQUEUES=0, RETRY_BACKOFF_SECONDS=0)


@pytest.mark.parametrize("heartbeat", [60, 61])
def test_E004_a_heartbeat_no_shorter_than_the_lease(heartbeat: int) -> None:
    assert "E004" in ids_with(LEASE_SECONDS=60, HEARTBEAT_SECONDS=heartbeat)


def test_W001_a_heartbeat_longer_than_a_third_of_the_lease() -> None:
    values = {"LEASE_SECONDS": 60}
    assert ids_with(**values, HEARTBEAT_SECONDS=21) == ["W001"]
    assert ids_with(**values, HEARTBEAT_SECONDS=20) == []


def test_E005_a_step_that_may_last_less_than_a_lease() -> None:
    assert ids_with(LEASE_SECONDS=60, MAX_STEP_SECONDS=59) == ["E005"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"DISPATCHER": "no.such.module"}, "No module named 'no'"),
        ({"DISPATCHER": "not_dotted"}, "doesn't look like a module path"),
        ({"DISPATCHER": "agentruns.dispatch.TASK"}, "has no method wake()"),
        ({"REDACT": "nowhere.redact"}, "can't be imported"),
        ({"FAILURE_CLASSIFIERS": ["agentruns.failures.nothing"]}, "nothing"),
        ({"FAILURE_CLASSIFIERS": ["agentruns.dispatch.TASK"]}, "can't be called"),
    ],
)
def test_E006_a_path_that_leads_nowhere(value: dict[str, Any], why: str) -> None:
    with override_settings(AGENTRUNS=value):
        (message,) = found()
    assert message.id == "agentruns.E006"
    assert why in message.msg


def test_E006_a_dispatcher_whose_library_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    monkeypatch.delitem(sys.modules, "agentruns.dispatch.celery", raising=False)
    with override_settings(AGENTRUNS={"DISPATCHER": "agentruns.dispatch.celery.CeleryDispatcher"}):
        (message,) = found()
    assert message.hint == "Install celery, which it needs."


def test_E015_django_q_is_to_wake_the_runs_and_is_not_installed() -> None:
    with modify_settings(INSTALLED_APPS={"remove": "django_q"}):
        (message,) = found()
        assert ids_with(DISPATCHER="agentruns.dispatch.immediate.ImmediateDispatcher") == []
    assert message.id == "agentruns.E015"
    assert "Add 'django_q' to INSTALLED_APPS" in str(message.hint)


def test_E003_payloads_that_could_not_hold_a_line_of_the_history() -> None:
    assert ids_with(MAX_PAYLOAD_BYTES=40) == ["E003"]
    assert ids_with(MAX_PAYLOAD_BYTES=10_000) == []


def test_E016_a_database_that_commits_nothing_by_itself() -> None:
    assert ids_on({**SQLITE, "AUTOCOMMIT": False}) == ["E016"]


def test_E007_an_alias_that_is_no_database() -> None:
    assert ids_with(DATABASE="nowhere") == ["E007"]


@pytest.mark.parametrize("mode", [None, "DEFERRED"])
def test_E008_sqlite_whose_transactions_begin_as_reads(mode: str | None) -> None:
    assert ids_on({**SQLITE, "OPTIONS": {"transaction_mode": mode}}) == ["E008"]
    assert ids_on({**SQLITE, "OPTIONS": {}}) == ["E008"]
    assert ids_on(SQLITE) == []


@pytest.mark.parametrize("synchronous", ["NORMAL", "off", "1", "0"])
def test_W002_sqlite_that_does_not_flush_each_commit(synchronous: str) -> None:
    command = f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous};"
    options = {"transaction_mode": "IMMEDIATE", "init_command": command}
    assert ids_on({**SQLITE, "OPTIONS": options}) == ["W002"]


@pytest.mark.sqlite
def test_W002_the_connection_itself_is_asked(transactional_db: None) -> None:
    assert ids(databases=["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous = NORMAL")
    try:
        assert ids(databases=["default"]) == ["W002"]
    finally:
        connection.close()


def test_E009_times_without_a_zone() -> None:
    with override_settings(USE_TZ=False):
        assert ids() == ["E009"]


@pytest.mark.server
def test_E010_a_database_that_can_not_skip_locked_rows(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ids(databases=["default"]) == []
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    assert ids(databases=["default"]) == ["E010"]
    assert ids() == []


@pytest.mark.postgres
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_E013_another_isolation_level(transactional_db: None, level: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{level}'")
    try:
        assert ids(databases=["default"]) == ["E013"]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET default_transaction_isolation")


@pytest.mark.parametrize("cluster", [{"retry": 900}, {"retry": 899}])
def test_E011_a_retry_that_is_not_above_the_timeout(cluster: dict[str, Any]) -> None:
    assert ids_in_cluster(**cluster) == ["E011"]


def test_E011_the_retry_that_django_q_takes_if_none_is_set() -> None:
    cluster = {key: value for key, value in django_settings.Q_CLUSTER.items() if key != "retry"}
    with override_settings(Q_CLUSTER=cluster):
        assert ids() == ["E011"]


def test_E011_another_cluster_of_the_same_site() -> None:
    assert ids_in_cluster(ALT_CLUSTERS={"long": {"timeout": 1200}}) == ["E011"]
    assert ids_in_cluster(ALT_CLUSTERS={"long": {"timeout": 1200, "retry": 1500}}) == []


def test_W003_a_transaction_around_every_view() -> None:
    assert ids_on({**SQLITE, "ATOMIC_REQUESTS": True}) == ["W003"]


def test_W004_a_cluster_without_a_timeout() -> None:
    assert ids_in_cluster(timeout=None) == ["W004"]


def test_W012_a_cluster_without_a_broker(settings: Any) -> None:
    settings.Q_CLUSTER = {"timeout": 900, "retry": 960}
    (message,) = found()
    assert message.id == "agentruns.W012"
    assert "Redis at localhost:6379" in message.msg
    assert "'orm': 'default'" in str(message.hint)
    assert ids_in_cluster(orm="default") == []
    assert ids_in_cluster(redis={}) == []
    assert ids_in_cluster(orm=None) == ["W012"]


def test_W012_no_cluster_at_all(settings: Any) -> None:
    del settings.Q_CLUSTER
    assert sorted(ids()) == ["W004", "W012"]


def test_W005_a_cluster_that_executes_at_once() -> None:
    assert ids_in_cluster(sync=True) == ["W005"]


def test_W006_a_timeout_shorter_than_a_step_may_last() -> None:
    assert ids_in_cluster(timeout=599) == ["W006"]


def test_another_dispatcher_makes_its_queue_nobodys_business() -> None:
    path = "agentruns.dispatch.immediate.ImmediateDispatcher"
    with override_settings(AGENTRUNS={"DISPATCHER": path}):
        assert ids_in_cluster(timeout=None, sync=True) == []


def test_W007_nobody_reaps(transactional_db: None) -> None:
    asked = {"include_deployment_checks": True, "databases": ["default"]}
    assert ids(**asked) == ["W007"]
    assert ids(databases=["default"]) == []
    call_command("install_reaper_schedule", verbosity=0, json=True)
    assert ids(**asked) == ["I001"]
    Schedule.objects.update(repeats=0)
    assert ids(**asked) == ["W007"]


def test_I001_only_a_schedule_of_the_cluster_reaps(transactional_db: None) -> None:
    call_command("install_reaper_schedule", verbosity=0, json=True)
    (message,) = found(include_deployment_checks=True, databases=["default"])
    assert (message.id, message.level) == ("agentruns.I001", INFO)
    assert found(databases=["default"]) == []


def test_E012_keys_that_are_none() -> None:
    good = Fernet.generate_key().decode()
    assert ids_with(ENCRYPTION_KEYS=[good]) == []
    assert ids_with(ENCRYPTION_KEYS=[good, "a secret that is no key"]) == ["E012"]


def test_E012_names_no_key() -> None:
    with override_settings(AGENTRUNS={"ENCRYPTION_KEYS": ["hunter2"]}):
        (message,) = found()
    assert "number 1 of ENCRYPTION_KEYS is not a Fernet key" in message.msg
    assert "hunter2" not in str(message)
    with override_settings(AGENTRUNS={"ENCRYPTION_KEYS": "hunter2"}):
        (message,) = found()
    assert message.id == "agentruns.E002"
    assert "hunter2" not in str(message)


def test_E012_a_library_that_is_not_installed() -> None:
    fernet.cache_clear()
    with patch.dict("sys.modules", {"cryptography.fernet": None}):
        assert ids_with(ENCRYPTION_KEYS=[Fernet.generate_key().decode()]) == ["E012"]


def test_W010_statements_with_payloads_in_the_log(settings: Any) -> None:
    sql = logging.getLogger("django.db.backends")
    level = sql.level
    sql.setLevel(logging.DEBUG)
    try:
        assert ids() == []
        settings.DEBUG = True
        assert ids() == ["W010"]
        sql.setLevel(logging.INFO)
        assert ids() == []
    finally:
        sql.setLevel(level)


@pytest.mark.parametrize(("workers", "said"), [(None, "processors"), (2, "2 workers"), (1, "")])
def test_W011_several_workers_on_sqlite(settings: Any, workers: int | None, said: str) -> None:
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "workers": workers}
    with patch.dict(django_settings.DATABASES, {"default": SQLITE}):
        messages = [m for m in found(include_deployment_checks=True) if m.id == "agentruns.W011"]
        assert "agentruns.W011" not in [message.id for message in found()]
    assert [said in message.msg for message in messages] == ([True] if said else [])


def test_W008_a_maximum_below_what_is_doubled() -> None:
    values = {"RETRY_BACKOFF_SECONDS": 10, "RETRY_BACKOFF_MAX_SECONDS": 5}
    assert ids_with(**values) == ["W008"]


@pytest.mark.postgres
def test_W009_a_transaction_that_may_stay_open_for_ever(transactional_db: None) -> None:
    assert ids(databases=["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
    try:
        assert ids(databases=["default"]) == ["W009"]
        assert ids() == []
    finally:
        connection.close()
