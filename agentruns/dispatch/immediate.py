from __future__ import annotations

from uuid import UUID

from django.utils.module_loading import import_string

from . import TASK


class ImmediateDispatcher:
    """Executes a run where it is woken: for shells and tests, without a queue."""

    def wake(self, uuid: UUID) -> None:
        import_string(TASK)(str(uuid))
