from __future__ import annotations

import urllib.request

import pytest
from django.db import OperationalError, connection
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from agentruns.metrics import register
from agentruns.models import AgentRun
from agentruns.models.querysets import AgentRunQuerySet
from tests.agentruns.cases import interrupted, queued
from tests.harness.database import said
from tests.servers.waiting import wait_until

from .commands.test_check_agent_runs import older

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    register(registry)
    return registry


def value(registry: CollectorRegistry, name: str, what: str) -> float | None:
    return registry.get_sample_value(name, {"what": what})


def test_tells_what_waits_and_for_how_long(registry: CollectorRegistry) -> None:
    interrupted()
    interrupted()
    older(queued(), "available_at", 7200)
    assert value(registry, "agentruns_waiting", "unresolved") == 2
    assert value(registry, "agentruns_waiting", "stale") == 0
    age = value(registry, "agentruns_oldest_waiting_seconds", "due")
    assert age is not None
    assert 7200 <= age < 7300
    assert value(registry, "agentruns_oldest_waiting_seconds", "stale") == 0


def test_is_registered_without_asking_the_database(registry: CollectorRegistry) -> None:
    """`describe()` names the metrics, so that a start does not depend on the database."""
    with pytest.raises(ValueError, match="Duplicated"):
        register(registry)


def test_a_scrape_without_the_database_fails_and_tells_no_old_figure(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runs: AgentRunQuerySet) -> AgentRun:
        raise OperationalError("away")

    monkeypatch.setattr(AgentRunQuerySet, "first", fail)
    with pytest.raises(OperationalError):
        generate_latest(registry)


@pytest.mark.server
def test_a_metrics_server_leaves_no_connection(registry: CollectorRegistry) -> None:
    queued()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def connections() -> int:
        with connection.cursor() as cursor:
            cursor.execute(said("others"), [connection.settings_dict["NAME"]])
            return len(cursor.fetchall())

    before = connections()
    try:
        for _ in range(3):
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url) as answer:
                assert b'agentruns_waiting{what="due"} 1.0' in answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    wait_until(lambda: connections() <= before, what="the end of the scrapes' connections")
