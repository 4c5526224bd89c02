from __future__ import annotations

from collections import deque
from threading import local
from uuid import UUID

from django.utils.module_loading import import_string

from . import TASK

# A run that a run enqueues is executed inside it, so that it may wait for its end. A line of runs, each
# of which wakes the next, would go on for ever deeper.
DEEPEST = 5


class _Here(local):
    def __init__(self) -> None:
        self.depth = 0
        self.later: deque[UUID] = deque()


_here = _Here()


class ImmediateDispatcher:
    """Executes a run where it is woken: for shells and tests, without a queue."""

    def wake(self, uuid: UUID) -> None:
        if _here.depth >= DEEPEST:
            _here.later.append(uuid)
            return
        _execute(uuid)
        while _here.depth == 0 and _here.later:
            _execute(_here.later.popleft())


def _execute(uuid: UUID) -> None:
    _here.depth += 1
    try:
        import_string(TASK)(str(uuid))
    finally:
        _here.depth -= 1
