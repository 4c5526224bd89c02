"""The queue is only a wake-up call: it may repeat itself, and it may forget."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from django.utils import timezone
from django_q.models import OrmQ

from agentruns.enums import RunStatus
from agentruns.testing.client import RecorderClient
from tests.harness.fixtures import StartQCluster
from tests.harness.processes import Reaper
from tests.harness.runs import (
    deliver_again,
    describe,
    drain,
    end_lease,
    history,
    reread,
    wait_settled,
)
from tests.servers.waiting import wait_until

from .support import COMPLETED, begin, begin_held, interrupted_step, outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def test_a_message_that_the_broker_delivers_again_starts_nothing(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """The broker believes after a second that the worker is dead; it is in the middle of a write."""
    qcluster = start_qcluster(workers=2, q_cluster={"timeout": None, "retry": 1, "queue_limit": 2})
    run, _worker = begin_held("one_write", "in_body:write", recorder)
    deliveries = f"processing agentrun {run.uuid}"
    wait_until(lambda: qcluster.output().count(deliveries) >= 2, what="a second delivery")
    deliver_again(run)
    assert reread(run).status == RunStatus.RUNNING
    recorder.release("in_body:write")
    wait_settled(run)
    deliver_again(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert history(run) == ["queued", "claimed", "completed"]
    assert [recorder.count(name) for name in ("read_before", "write", "read_after")] == [1, 1, 1]


def test_a_broker_that_lost_its_queue_strands_no_run(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    runs = [begin("one_write") for _ in range(3)]
    assert OrmQ.objects.count() == 3
    OrmQ.objects.all().delete()
    qcluster = start_qcluster()
    marker = begin("reads")
    wait_settled(marker)
    assert {reread(run).status for run in runs} == {RunStatus.QUEUED}, qcluster.output()
    for run in runs:
        drain(run)
        assert outcome(run) == COMPLETED, describe(run)
        assert reread(run).requeue_count == 0
    assert recorder.count("write") == 3


def test_a_cluster_that_dies_with_messages_in_its_memory_strands_no_run(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """A power cut: the queued run's message was fetched, and is locked for as long as `retry`."""
    cluster = start_qcluster()
    inside, _worker = begin_held("one_write", "in_body:write", recorder)
    queued = begin("reads")
    fetched = OrmQ.objects.filter(lock__gt=timezone.now())
    wait_until(lambda: fetched.count() == 2, what="both messages in the cluster's memory")
    cluster.kill()
    start_qcluster()
    drain(queued)
    assert outcome(queued) == COMPLETED, describe(queued)
    end_lease(inside)
    drain(inside)
    interrupted_step(inside)
    assert recorder.count("write") == 1


@pytest.fixture
def redis_queue() -> Iterator[str]:
    """The name of a queue of this test's own, in the Redis server that REDIS_URL names."""
    name = f"crash-{uuid4().hex}"
    yield name
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as server:
        server.delete(f"django_q:{name}:q")


@pytest.mark.redis
def test_a_run_killed_inside_a_write_is_dead_lettered_with_the_redis_broker(
    redis_queue: str, start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    """This process wakes nobody, since its broker is another one: only a sweep's wake-ups count."""
    options: dict[str, Any] = {"q_cluster": {"name": redis_queue}, "TEST_BROKER": "redis"}
    qcluster = start_qcluster(**options)
    recorder.arm("in_body:write")
    run = begin("one_write")
    with Reaper(**options):
        qcluster.kill_worker(recorder.wait_reached("in_body:write"))
        end_lease(run)
        wait_settled(run)
        interrupted_step(run)
        other = begin("reads")
        wait_settled(other)
    assert outcome(other) == COMPLETED, describe(other)
    interrupted_step(run)
    assert recorder.count("write") == 1
