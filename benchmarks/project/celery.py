"""A Celery app with one worker, for the latency through RabbitMQ."""

from __future__ import annotations

import os

import django
from celery import Celery

from .tasks import EMPTY, empty

QUEUE = "agentruns-benchmark"

app = Celery("benchmark", broker=os.environ.get("RABBITMQ_URL"), set_as_current=False)
app.conf.update(
    imports=["agentruns.dispatch.celery"],
    task_default_queue=QUEUE,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
app.task(name=EMPTY, ignore_result=True)(empty)

if __name__ == "__main__":
    django.setup()
    app.set_current()
    app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "--loglevel=WARNING"])
