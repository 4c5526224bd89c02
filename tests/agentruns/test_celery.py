"""Wake-ups through Celery, a real RabbitMQ and a worker's process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import pools
from kombu.connection import Connection

from agentruns.dispatch import dispatcher, wake_all
from agentruns.dispatch.celery import CeleryDispatcher
from agentruns.enums import RunStatus
from agentruns.testing.client import RecorderClient
from tests.harness.processes import OwnProcess
from tests.harness.runs import enqueued, reread, wait_settled
from tests.servers.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rabbitmq]

DISPATCHER = "agentruns.dispatch.celery.CeleryDispatcher"


@pytest.fixture
def app(settings: Any) -> Iterator[Celery]:
    """The project's app, current, with a queue of the test's own."""
    from celery._state import _set_current_app, get_current_app

    from tests.project.celery import app

    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": DISPATCHER}
    former, queue = get_current_app(), f"test-{uuid4()}"
    app.conf.task_default_queue = queue
    app.amqp.queues.clear()
    app.amqp.queues.add(queue)
    forget_connections(app)
    _set_current_app(app)
    yield app
    _set_current_app(former)
    with broker() as connection:
        connection.channel().queue_delete(queue)
    app.close()


def forget_connections(app: Celery) -> None:
    """Have the app connect anew: its pools keep the broker's address that they began with."""
    pools.reset()  # type: ignore[no-untyped-call]
    app._pool = None
    app.amqp._producer_pool = None


def broker() -> Any:
    return Connection(os.environ["RABBITMQ_URL"])  # type: ignore[no-untyped-call]


def waiting(app: Celery) -> int:
    """How many messages the broker holds for workers."""
    with broker() as connection:
        queue = app.conf.task_default_queue
        return int(connection.channel().queue_declare(queue, passive=True).message_count)


def worker(app: Celery, recorder_url: str) -> OwnProcess:
    return OwnProcess(
        "-m",
        "tests.project.celery",
        recorder_url=recorder_url,
        TEST_CELERY_QUEUE=app.conf.task_default_queue,
    )


def test_a_celery_worker_executes_a_run_that_it_is_woken_for(
    app: Celery, recorder: RecorderClient, recorder_url: str
) -> None:
    assert isinstance(dispatcher(), CeleryDispatcher)
    run = enqueued("one_write", {})
    wait_until(lambda: waiting(app) == 1, 30, "the message to arrive")
    with worker(app, recorder_url):
        row = wait_settled(run, timeout=60)
        assert row.status == RunStatus.COMPLETED, row.error_message
        assert recorder.count("write") == 1
        # A message that comes again finds nothing to claim.
        wake_all([run.uuid, run.uuid])
        wait_until(lambda: waiting(app) == 0, 30, "the messages to be taken")
    assert (reread(run).claim_epoch, recorder.count("write")) == (1, 1)


def test_many_are_sent_over_one_connection(app: Celery) -> None:
    assert wake_all([uuid4() for _ in range(100)]) == 100
    wait_until(lambda: waiting(app) == 100, 30, "the messages to arrive")


def test_a_broker_that_is_away_costs_no_run(app: Celery, settings: Any) -> None:
    app.conf.broker_url = "amqp://guest:guest@127.0.0.1:1//"
    forget_connections(app)
    try:
        run = enqueued("one_write", {})
        assert wake_all([run.uuid, run.uuid]) == 0
    finally:
        app.conf.broker_url = os.environ["RABBITMQ_URL"]
    assert reread(run).status == RunStatus.QUEUED
