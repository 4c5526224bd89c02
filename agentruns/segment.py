from __future__ import annotations

import inspect
from functools import cached_property, partial
from typing import Any

from .asking import Asking
from .bodies import Body, refuse_body
from .calls import drive
from .conf import conf
from .enums import StepKind, StepOutcome, ToolEffect
from .exceptions import GivenBack, JournalMismatch, LeaseLost, PayloadUnreadable
from .models import AgentRun
from .sqlthread import on_new_connections


class Segment(Asking):
    """One continuous execution of a run under one claim: what an agent's function receives.

    A step that is in the journal is replayed; another one is executed and recorded. Anything that
    ends the segment makes it dead: every later step raises the same, so that code which swallowed
    it can do no more.
    """

    @cached_property
    def request(self) -> Any:
        """The run's request, decoded. None where none was given.

        Raises:
            PayloadUnreadable: the stored text is damaged.
        """
        try:
            return None if self._request is None else self._request.value
        except PayloadUnreadable as damaged:
            self._end(PayloadUnreadable(f"the request: {damaged}"), damaged)

    def step(
        self,
        name: str,
        body: Body,
        *,
        effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
        key: str | None = None,
        kind: StepKind = StepKind.CALL,
        arguments: Any = None,
        digest: str | None = None,
        needs_approval: bool = False,
    ) -> Any:
        """Execute `body(idempotency_key)` as one step, or give back what the journal has.

        The value is the JSON round trip of what the body returned, so that a replay gives the same.
        `key` names the step in the journal (default: its name, counted); `arguments` are stored with
        it, and a replay with others (or another `digest`) is refused. If the process dies inside a
        non-idempotent body, the run is dead-lettered and the body never repeated by a machine.
        With `needs_approval` a person decides on the call, with these arguments, before its fence is
        stamped; the run is parked meanwhile.

        Raises:
            EffectNotApplied: the body said so; also in a replay.
            ApprovalDenied: a person denied the call; also in a replay.
            LandedWithoutResult: the effect happened, its result could not be kept; the run fails.
            JournalMismatch: the journal has something else under this key; the run fails.
            InsideTransaction: a write was called inside `atomic()`.
            PayloadError: the arguments can't be kept as JSON.
            TypeError: the body can't be called with a key.
            ValueError: the effect or the kind is none.
            SegmentInterrupt: the segment has ended; let it pass.
            Exception: what the body of a read or of a transactional write raised.
        """
        refuse_body(name, body)
        if inspect.iscoroutinefunction(body):
            raise TypeError(f"step {name!r} has an async body: use astep()")
        call = self._call(name, effect, key, kind, arguments, digest)
        return drive(self._perform(call, body, self._blocking, needs_approval))

    async def astep(
        self,
        name: str,
        body: Body,
        *,
        effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
        key: str | None = None,
        kind: StepKind = StepKind.CALL,
        arguments: Any = None,
        digest: str | None = None,
        needs_approval: bool = False,
    ) -> Any:
        """The same as `step`, for an async body. Reads may overlap; a second write waits its turn.

        The body of a transactional write is a plain function; it runs on the SQL thread.
        """
        refuse_body(name, body)
        call = self._call(name, effect, key, kind, arguments, digest)
        return await self._perform(call, body, self._loop, needs_approval)

    # The life of a segment; for the runner.

    def open(self) -> None:
        """Read the request and the journal, and land the first heartbeat.

        Raises:
            LeaseLost: the run was lost before its first step.
        """
        loading = self.sql.submit(
            partial(on_new_connections, self._load, conf.RECORD_RETRY_SECONDS)
        )
        # Meanwhile: each opens a connection, which takes longer than what is sent on it.
        self.heartbeat.start()
        loading.result()

    def _load(self, again: bool) -> None:
        rows = AgentRun.objects.values_list("request", "digest_key")
        self._request, digest_key = rows.get(pk=self.run.pk)
        self._journal.load(digest_key)

    def close(self) -> None:
        if self.interrupt is None:
            self.interrupt = LeaseLost(f"the segment of run {self.run.uuid} has ended")
        self.heartbeat.stop()
        self.sql.close()

    def keyed(self, digest: str) -> str:
        """A plain digest as this run's journal keeps it: see `digests.py`."""
        return self._journal.keyed(digest)

    @property
    def body_is_over(self) -> bool:
        """Whether the body of the unrecorded write is known to act no more.

        One that raised is not, on whatever thread it ran: it may have left its work to a task, a thread
        pool or a process that goes on, such as when it stopped waiting for them.
        """
        return self.unrecorded is None or self.unrecorded[1].outcome is not StepOutcome.RAISED

    def ask_to_stop(self) -> bool:
        """Ask it to give the run back. Returns whether it may be interrupted at once.

        Inside a write it may not: the write is finished and recorded first. Nor when the agent's
        function has ended and the run is being settled.
        """
        self._stopping = True
        at_once = self._writes == 0 and not self.heartbeat.settling
        if at_once and self.interrupt is None:
            self.interrupt = GivenBack("the process is to stop")
        return at_once

    @property
    def busy(self) -> bool:
        """Whether a step goes on: in a task, or in a thread of the agent's own."""
        return bool(self._in_flight)

    def refuse_unfinished(self) -> None:
        """Refuse a normal end of a segment that was interrupted or left recorded steps unread."""
        if self.interrupt is not None:
            raise self.interrupt
        try:
            self._journal.refuse_unconsumed("ended")
        except JournalMismatch as error:
            self._end(error)
