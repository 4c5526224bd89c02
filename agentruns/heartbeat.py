from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from . import hotpath
from .clock import clock
from .conf import conf
from .exceptions import LeaseLost

if TYPE_CHECKING:
    from .guard import Claim
    from .models import AgentRun

logger = logging.getLogger(__name__)

# The database does not answer: it would not for another run either.
AWAY = (OperationalError, InterfaceError)
# For how long a record of the segment's own may hold its row.
PAUSE_SECONDS = 0.05


class Heartbeat:
    """Keeps one segment's lease renewed, by the pulse of its process.

    A tool that blocks can't starve it. It renews until MAX_STEP_SECONDS after the last recorded
    step, so that what hangs is reaped in the end.
    """

    def __init__(self, run: AgentRun, claim: Claim) -> None:
        self.run = run
        self.claim = claim
        self.begun = False
        self._settled = threading.Event()
        self._alone: threading.Thread | None = None
        self._progress_at = clock()
        self._renewed_at = clock()
        self._hung = False
        self.lost: LeaseLost | None = None
        # A run that is being settled loses its lease: that is no news.
        self.settling = False

    def start(self) -> None:
        """Start, and return when the first beat has landed.

        Raises:
            LeaseLost: the guard said no, or no beat landed for a whole lease.
        """
        pulse.add(self)
        self._settled.wait(conf.LEASE_SECONDS)
        self.refuse_if_lost()
        if not self._settled.is_set():
            raise LeaseLost("the first heartbeat did not land for a whole lease")

    def stop(self) -> None:
        """Stop renewing. Without waiting for a database that does not answer."""
        pulse.remove(self)
        if self._alone is not None:
            self._alone.join(timeout=1.0)

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

    # For the pulse.

    def wants_a_beat(self) -> bool:
        waits = self._alone is not None and self._alone.is_alive()
        return self.lost is None and not waits and not self._hangs()

    def _hangs(self) -> bool:
        """Whether no step was recorded for MAX_STEP_SECONDS; a record ends that."""
        hung = clock() - self._progress_at > conf.MAX_STEP_SECONDS
        if hung and not self._hung:
            logger.error(
                "no step of run %s was recorded for MAX_STEP_SECONDS: its lease is not renewed now",
                self.run.uuid,
            )
        self._hung = hung
        return hung

    def landed(self, sent_at: float) -> None:
        self.note_renewal(sent_at)
        self._settled.set()

    def beat_alone(self) -> None:
        """Renew on a thread of its own: somebody holds the row, or it is not this segment's now."""
        self._alone = threading.Thread(
            target=self._wait_for_row, name=f"agentruns-heartbeat-{self.run.pk}", daemon=True
        )
        self._alone.start()

    def _wait_for_row(self) -> None:
        sent_at = clock()
        try:
            hotpath.renew(self.run, self.claim)
        except LeaseLost as lost:
            self.lost = lost
            self._settled.set()
            if not self.settling:
                logger.warning("heartbeat: %s", lost)
        except (DatabaseError, InterfaceError) as error:
            say_that_it_failed([self], error)
        else:
            self.landed(sent_at)
        finally:
            connections[conf.DATABASE].close()


class Pulse:
    """The thread, with a connection of its own, on which a process renews the leases of its segments.

    It sends one statement for all of them at a time, and waits for no row: a segment whose row was not
    renewed finds out alone. It lives from the first segment to the last.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a process that was forked, whose parent has the thread."""
        self._changed = threading.Condition()
        self._segments: dict[int, Heartbeat] = {}
        self._thread: threading.Thread | None = None
        self._sent_at: float | None = None

    def add(self, segment: Heartbeat) -> None:
        with self._changed:
            self._segments[id(segment)] = segment
            if self._thread is None or self._is_stuck():
                self._thread = threading.Thread(
                    target=self._beat_until_last, name="agentruns-heartbeat", daemon=True
                )
                self._sent_at = None
                self._thread.start()
            self._changed.notify_all()

    def remove(self, segment: Heartbeat) -> None:
        with self._changed:
            self._segments.pop(id(segment), None)
            ending = None if self._segments else self._thread
            self._changed.notify_all()
        if ending is not None:
            ending.join(timeout=1.0)

    def _is_stuck(self) -> bool:
        """Whether a statement of the thread has had no answer for a whole lease."""
        return self._sent_at is not None and clock() - self._sent_at > conf.LEASE_SECONDS

    def _beat_until_last(self) -> None:
        try:
            due_at = clock() + conf.HEARTBEAT_SECONDS
            while (segments := self._next(due_at)) is not None:
                if clock() >= due_at:
                    due_at = clock() + conf.HEARTBEAT_SECONDS
                self._beat(segments)
        finally:
            connections[conf.DATABASE].close()

    def _next(self, due_at: float) -> list[Heartbeat] | None:
        """Wait for whom to renew: who has just begun, and all of them when they are due.

        None when no segment is left, or another thread has taken this one's place.
        """
        with self._changed:
            while self._segments and self._thread is threading.current_thread():
                everyone = list(self._segments.values())
                found = everyone if clock() >= due_at else [s for s in everyone if not s.begun]
                if found:
                    self._sent_at = clock()
                    return found
                self._sent_at = None
                self._changed.wait(due_at - clock())
            if self._thread is threading.current_thread():
                self._thread = None
            return None

    def _beat(self, segments: list[Heartbeat]) -> None:
        for segment in segments:
            segment.begun = True
        try:
            renew([segment for segment in segments if segment.wants_a_beat()])
        except Exception:
            logger.exception("heartbeat")


def renew(segments: Sequence[Heartbeat], *, again: bool = False) -> None:
    """Renew the leases of these segments in one go; one by one where one of them spoils it.

    Whose row is held is tried `again` when a record of its own would have ended, then left alone.
    """
    if not segments:
        return
    sent_at = clock()
    try:
        renewed = _renewed([segment.claim for segment in segments])
    except (DatabaseError, InterfaceError) as error:
        connections[conf.DATABASE].close()
        if len(segments) == 1 or isinstance(error, AWAY):
            say_that_it_failed(segments, error)
            return
        for segment in segments:
            renew([segment])
        return
    left = [segment for segment in segments if segment.claim not in renewed]
    for segment in segments:
        if segment.claim in renewed:
            segment.landed(sent_at)
        elif again:
            segment.beat_alone()
    if left and not again:
        threading.Event().wait(PAUSE_SECONDS)
        renew(left, again=True)


def _renewed(claims: Sequence[Claim]) -> Collection[Claim]:
    """Renew, on a new connection if the former one has died since the last beat."""
    try:
        return hotpath.renew_all(claims)
    except AWAY:
        connections[conf.DATABASE].close()
        return hotpath.renew_all(claims)


def say_that_it_failed(segments: Sequence[Heartbeat], error: Exception) -> None:
    for segment in segments:
        logger.warning("heartbeat of run %s failed: %s", segment.run.uuid, type(error).__name__)


pulse = Pulse()
os.register_at_fork(after_in_child=pulse.forget)
