from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from ..api import RunState, status
from ..enums import WAITING, RunStatus
from ..exceptions import AgentRunError
from ..guard import from_now
from ..models import AgentRun
from ..reaper import sweep
from ..tasks import execute


class NotSettled(AgentRunError):
    """A run is still going on after as many segments as it was allowed."""


class LeaseClock:
    """Moves the times of one run, by the database's clock, so that a test need not wait for them.

    What a worker concludes from its own clock does not move; a test of that has to wait.
    """

    def __init__(self, uuid: UUID | str) -> None:
        self.uuid = UUID(str(uuid))

    def run_out(self) -> None:
        """Let the lease have run out a second ago: the next sweep reaps the run."""
        self._write(RunStatus.RUNNING, lease_expires_at=from_now(-1))

    def advance(self, seconds: float) -> None:
        """Let so many seconds more have passed since the lease was renewed."""
        passed = timedelta(seconds=seconds)
        self._write(RunStatus.RUNNING, lease_expires_at=F("lease_expires_at") - passed)

    def make_due(self) -> None:
        """End the pause before a retry, or the delay of a run that is to begin later."""
        self._write(RunStatus.QUEUED, available_at=Now())

    def _write(self, wanted: RunStatus, **columns: object) -> None:
        AgentRun.objects.filter(uuid=self.uuid, status=wanted).write_guarded(**columns)


def run_until_settled(
    uuid: UUID | str,
    *,
    execute: Callable[[str], object] = execute,
    max_segments: int = 50,
) -> RunState:
    """Execute a run here until it is settled, dead-lettered or waits for a person; how it is then.

    What is queued is executed, whatever its pause; what a segment left RUNNING (it died, or its
    connection did) is reaped without waiting for its lease; a destination is asked about a write in
    doubt, once. Nobody else may execute the run meanwhile. `execute` is what a queue calls.

    Raises:
        RunNotFound: there is no such run.
        NotSettled: it is still going on after `max_segments` segments.
    """
    clock = LeaseClock(uuid)
    for _ in range(max_segments):
        state = status(uuid)
        if state.status in WAITING or (state.settled and not state.uncertain):
            return state
        if state.uncertain:
            execute(str(uuid))
            if status(uuid).settled:
                return status(uuid)
        elif state.status is RunStatus.RUNNING:
            clock.run_out()
            sweep()
        else:
            clock.make_due()
            execute(str(uuid))
    raise NotSettled(f"run {uuid} is {status(uuid).status} after {max_segments} segments")
