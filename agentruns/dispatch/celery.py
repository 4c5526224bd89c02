from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from celery import current_app, shared_task
from django.utils.module_loading import import_string

from . import TASK


@shared_task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def execute(uuid: str) -> None:
    """What a Celery worker does for a wake-up."""
    import_string(TASK)(uuid)


class CeleryDispatcher:
    """Wakes runs through the project's Celery app, whatever its broker.

    Its workers must know the task: put 'agentruns.dispatch.celery' into the app's `imports`. Nothing is
    kept of the task, and nothing hangs on its acknowledgement: the run's row has it all.
    """

    def wake(self, uuid: UUID) -> None:
        send(uuid)

    def wake_many(self, uuids: Sequence[UUID]) -> None:
        with current_app.producer_or_acquire() as producer:
            for uuid in uuids:
                send(uuid, producer=producer)


def send(uuid: UUID, **options: Any) -> None:
    # A sweep repeats what a broker that is away did not take.
    current_app.send_task(TASK, args=[str(uuid)], ignore_result=True, retry=False, **options)
