"""Somebody's Celery app, whose workers take wake-ups from the queue that the test names."""

from __future__ import annotations

import os

import django
from celery import Celery

QUEUE = "TEST_CELERY_QUEUE"

app = Celery("project", broker=os.environ.get("RABBITMQ_URL"), set_as_current=False)
app.conf.update(
    imports=["agentruns.dispatch.celery"],
    task_default_queue=os.environ.get(QUEUE, "tests"),
    task_queue_max_priority=None,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)

if __name__ == "__main__":
    django.setup()
    app.set_current()
    app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "--loglevel=INFO"])
