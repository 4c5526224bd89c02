from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django_q.brokers import get_broker
from django_q.brokers.orm import ORM
from django_q.tasks import async_task

from . import TASK

LONG_AGO = datetime.fromtimestamp(0, UTC)


class DjangoQDispatcher:
    """Wakes runs through django-q2, whatever its broker.

    The result of the task is not kept: the run's row has it.
    """

    def wake(self, uuid: UUID) -> None:
        send(uuid, broker())

    def wake_many(self, uuids: Sequence[UUID]) -> None:
        to = broker()
        collected = Collecting(to.list_key)
        for uuid in uuids:
            send(uuid, collected)
        if isinstance(to, OrmAtOnce):
            to.enqueue_many(collected.tasks)
        elif is_redis(to):
            to.connection.rpush(to.list_key, *collected.tasks)
        else:
            for task in collected.tasks:
                to.enqueue(task)


def send(uuid: UUID, to: Any) -> None:
    async_task(TASK, str(uuid), task_name=f"agentrun {uuid}", save=False, broker=to)


class Collecting:
    """Takes the place of a broker, and keeps what it is given."""

    def __init__(self, list_key: str) -> None:
        self.list_key = list_key
        self.tasks: list[str] = []

    def enqueue(self, task: str) -> int:
        self.tasks.append(task)
        return len(self.tasks)


class OrmAtOnce(ORM):  # type: ignore[misc]
    """django-q2's table broker, without the sender's clock.

    It hides a message until the sender's time by the receiver's clock: from a host whose clock is
    ten minutes ahead, a wake-up would arrive ten minutes late.
    """

    def enqueue(self, task: str) -> Any:
        return self.get_connection().create(key=self.list_key, payload=task, lock=LONG_AGO).pk

    def enqueue_many(self, tasks: list[str]) -> None:
        messages = self.get_connection()
        messages.bulk_create(
            messages.model(key=self.list_key, payload=task, lock=LONG_AGO) for task in tasks
        )


def is_redis(to: Any) -> bool:
    try:
        from django_q.brokers.redis_broker import Redis  # its package is an extra
    except ImportError:
        return False
    return isinstance(to, Redis)


def broker() -> Any:
    configured = get_broker()
    return OrmAtOnce(configured.list_key) if type(configured) is ORM else configured
