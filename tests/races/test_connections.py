"""How many connections a process has, as docs/capacity.md counts them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import READ, queued, registered, reread
from tests.servers.waiting import wait_until

from .rivals import PATIENCE, Rival

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def open_connections() -> set[int]:
    """By the numbers of their backends: one of an earlier test may end only now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


@pytest.mark.parametrize("number", [1, 3])
def test_two_of_each_run_at_work_and_one_of_their_process(number: int) -> None:
    everybody, release = threading.Barrier(number + 1), threading.Event()

    def agent(segment: Segment) -> bool:
        def body(key: str) -> bool:
            everybody.wait(PATIENCE)
            return release.wait(PATIENCE)

        waited: bool = segment.step("wait", body, effect=READ)
        return waited

    def worker(run: str) -> Callable[[], None]:
        return lambda: execute(run)

    before = open_connections()
    with registered(agent) as name:
        runs = [queued(name) for _ in range(number)]
        workers = [Rival(worker(str(run.uuid))) for run in runs]
        for each in workers:
            each.start()
        everybody.wait(PATIENCE)
        at_work = open_connections() - before
        release.set()
        for each in workers:
            each.outcome()
    assert len(at_work) == 2 * number + 1
    assert {reread(run).status for run in runs} == {"completed"}
    wait_until(lambda: not at_work & open_connections(), what="every connection to be closed")
