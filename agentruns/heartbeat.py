from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connections

from .clock import clock
from .conf import conf
from .exceptions import LeaseLost

if TYPE_CHECKING:
    from .guard import Claim
    from .models import AgentRun

logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews a segment's lease, in a thread and on a connection of its own.

    A tool that blocks can't starve it. It renews until MAX_STEP_SECONDS after the last recorded
    step, so that what hangs is reaped in the end.
    """

    def __init__(self, run: AgentRun, claim: Claim) -> None:
        self._run = run
        self._claim = claim
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(
            target=self._beat_until_stopped, name=f"agentruns-heartbeat-{run.pk}", daemon=True
        )
        self._progress_at = clock()
        self._renewed_at = clock()
        self._hung = False
        self.lost: LeaseLost | None = None

    def start(self) -> None:
        """Start, and return when the first beat has landed.

        Raises:
            LeaseLost: the guard said no, or no beat landed for a whole lease.
        """
        self._thread.start()
        self._settled.wait(conf.LEASE_SECONDS)
        self.refuse_if_lost()
        if not self._settled.is_set():
            raise LeaseLost("the first heartbeat did not land for a whole lease")

    def stop(self) -> None:
        """Stop renewing. Without waiting for a database that does not answer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def note_record(self, sent_at: float) -> None:
        """Count a recorded step (sent at this `clock()`) as progress and as a renewal."""
        self._progress_at = clock()
        self.note_renewal(sent_at)

    def note_renewal(self, sent_at: float) -> None:
        self._renewed_at = max(self._renewed_at, sent_at)

    def refuse_if_lost(self) -> None:
        """Refuse to start a step that the lease does not cover.

        Raises:
            LeaseLost: the guard said no to a renewal, or none has landed for a whole lease.
        """
        if self.lost is not None:
            raise LeaseLost(str(self.lost))
        if clock() - self._renewed_at > conf.LEASE_SECONDS:
            raise LeaseLost("no renewal of the lease has landed for a whole lease")

    def _beat_until_stopped(self) -> None:
        try:
            while not self._stop.is_set() and self.lost is None:
                if not self._hangs():
                    self._beat()
                self._stop.wait(conf.HEARTBEAT_SECONDS)
        finally:
            connections[conf.DATABASE].close()

    def _hangs(self) -> bool:
        """Whether no step was recorded for MAX_STEP_SECONDS; a record ends that."""
        hung = clock() - self._progress_at > conf.MAX_STEP_SECONDS
        if hung and not self._hung:
            logger.error(
                "no step of run %s was recorded for MAX_STEP_SECONDS: its lease is not renewed now",
                self._run.uuid,
            )
        self._hung = hung
        return hung

    def _beat(self) -> None:
        sent_at = clock()
        try:
            self._run.renew(self._claim)
        except LeaseLost as lost:
            self.lost = lost
            self._settled.set()
            logger.warning("heartbeat: %s", lost)
        except (DatabaseError, InterfaceError) as error:
            connections[conf.DATABASE].close()
            logger.warning("heartbeat of run %s failed: %s", self._run.uuid, type(error).__name__)
        else:
            self.note_renewal(sent_at)
            self._settled.set()
