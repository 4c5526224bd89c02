from __future__ import annotations

from uuid import UUID

from django_q.tasks import async_task

from . import TASK


class DjangoQDispatcher:
    """Wakes runs through django-q2, whatever its broker.

    The result of the task is not kept: the run's row has it.
    """

    def wake(self, uuid: UUID) -> None:
        async_task(TASK, str(uuid), task_name=f"agentrun {uuid}", save=False)
