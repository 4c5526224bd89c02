from __future__ import annotations

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
        async_task(TASK, str(uuid), task_name=f"agentrun {uuid}", save=False, broker=broker())


class OrmAtOnce(ORM):  # type: ignore[misc]
    """django-q2's table broker, without the sender's clock.

    It hides a message until the sender's time by the receiver's clock: from a host whose clock is
    ten minutes ahead, a wake-up would arrive ten minutes late.
    """

    def enqueue(self, task: str) -> Any:
        return self.get_connection().create(key=self.list_key, payload=task, lock=LONG_AGO).pk


def broker() -> Any:
    configured = get_broker()
    return OrmAtOnce(configured.list_key) if type(configured) is ORM else configured
