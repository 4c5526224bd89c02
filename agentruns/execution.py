from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .attempts import Attempts
from .bodies import Body, enclosing_call, ending_returned, ending_said, inside
from .calls import Calls
from .clock import clock
from .conf import conf
from .enums import FENCED_EFFECTS, StepKind, StepOutcome, ToolEffect
from .exceptions import (
    AgentRunError,
    ApprovalVoid,
    CancelRequested,
    EffectLanded,
    EffectNotApplied,
    GivenBack,
    JournalMismatch,
    LandedWithoutResult,
    LeaseLost,
    PayloadUnreadable,
    SegmentInterrupt,
    UncertainWrite,
    WriteFailed,
)
from .fields import Payload
from .heartbeat import Heartbeat
from .journal import Journal, Line, read_result
from .models import AgentRun, Step, StepCall
from .models.step import Ending, idempotency_key
from .raised import cause_of, class_name, is_a
from .redaction import told
from .sqlthread import ANY_FAILURE, SqlThread, is_failure_of_the_database, on_new_connections
from .telemetry import span
from .transactional import RolledBack, refuse_inside_transaction

if TYPE_CHECKING:
    from .guard import Claim

T = TypeVar("T")

# What the author of a write can do that raises where nothing has happened.
ADVICE = " (where that is certain to mean that nothing happened, raise EffectNotApplied instead)"


class Execution:
    """Executes the steps of one segment, or replays them, each under the guard of its claim.

    Anything that ends the segment makes it dead: every later step raises the same, so that code which
    swallowed it can do no more.
    """

    def __init__(self, run: AgentRun, claim: Claim) -> None:
        self.run = run
        self.claim = claim
        self.usage: dict[str, Any] | None = None
        self.interrupt: BaseException | None = None
        # The fenced attempt that has no record, and how its body ended.
        self.unrecorded: tuple[Step, Ending] | None = None
        # Cancels the agent's function where it runs on an event loop.
        self.cancel_loop: Callable[[], object] | None = None
        self.sql = SqlThread()
        self.heartbeat = Heartbeat(run, claim)
        self._request: Payload | None = None
        self._journal = Journal(run)
        self._in_flight: set[str] = set()
        self._attempts = Attempts(run, claim)
        self._replaying = 0
        self._executing = 0
        self._writes = 0
        self._process = os.getpid()
        self._stopping = False

    def _call(
        self,
        name: str,
        effect: ToolEffect,
        key: str | None,
        kind: StepKind,
        arguments: Any,
        digest: str | None,
    ) -> StepCall:
        self._refuse_if_dead()
        if os.getpid() != self._process:
            raise AgentRunError(
                f"step {name!r} was called in a process that was forked from the worker"
            )
        enclosing = enclosing_call.get()
        if enclosing is not None:
            raise AgentRunError(
                f"step {name!r} was called inside the body of step {enclosing.name!r}: a step's body "
                "can't contain steps; do its parts as steps of their own"
            )
        return self._journal.call(
            name, effect=effect, kind=kind, key=key, arguments=arguments, digest=digest
        )

    def _refuse_if_dead(self) -> None:
        if self.interrupt is not None:
            raise self.interrupt
        if self._stopping:
            self._end(GivenBack("the process is to stop"))

    def _end(self, interrupt: BaseException, cause: BaseException | None = None) -> NoReturn:
        """Make the segment dead. The first interrupt stays the reason."""
        if self.interrupt is None:
            self.interrupt = interrupt
        raise interrupt from cause

    def _recorded(self, call: StepCall) -> Line | None:
        try:
            return self._journal.replay(call)
        except JournalMismatch as error:
            self._end(error)

    async def _replay(self, step: Line, calls: Calls) -> Any:
        self._replaying += 1
        try:
            result = await self._sql(calls, partial(read_result, self.run, step.key))
        finally:
            self._replaying -= 1
        recorded = Ending(StepOutcome(step.outcome), result, step.error)
        try:
            return self._give_back(recorded, step.name)
        except PayloadUnreadable as error:
            # Code that catches exceptions must not go on as if the step had failed.
            self._end(error)

    def _give_back(self, ending: Ending, name: str) -> Any:
        """What a recorded ending gives to the code: now, and in every replay."""
        if ending.outcome is StepOutcome.LANDED_WITHOUT_RESULT:
            self._end(
                LandedWithoutResult(f"{name} landed, but its result was lost: {ending.error}")
            )
        try:
            value = None if ending.result is None else ending.result.value
        except PayloadUnreadable as damaged:
            # Code that catches exceptions must not take that for the end of the step.
            self._end(PayloadUnreadable(f"the result of {name}: {damaged}"), damaged)
        if ending.outcome is StepOutcome.EFFECT_NOT_APPLIED:
            raise EffectNotApplied(value)
        return value

    async def _sql(self, calls: Calls, function: Callable[[], T]) -> T:
        """Do what may be sent twice; a database that stays away ends the segment.

        Code that catches exceptions must not take that for the end of the step itself.
        """
        seconds = conf.RECORD_RETRY_SECONDS
        again = partial(on_new_connections, lambda again: function(), seconds, ANY_FAILURE)
        try:
            return await calls.sql(again)
        except ANY_FAILURE as error:
            if not is_failure_of_the_database(error):
                raise
            self._end(SegmentInterrupt(f"run {self.run.uuid}: the database is away"), error)

    async def _fit_to_run(self, call: StepCall, calls: Calls) -> None:
        """Refuse a step that is new to a journal whose recorded steps nobody asked for."""
        # A tool or call that only reads may go on: an earlier one may have failed unrecorded.
        harmless = call.effect is ToolEffect.READ_ONLY and call.kind is not StepKind.MODEL
        if self._journal.unconsumed and not harmless and not self._journal.is_known(call):
            journal = self._journal
            await calls.siblings(
                lambda: journal.unconsumed == 0, lambda: (journal.unconsumed, self._replaying)
            )
            try:
                journal.refuse_unconsumed(f"goes on with {call.key!r}")
            except JournalMismatch as error:
                self._end(error)
        self._refuse_if_lost()

    def _refuse_if_lost(self) -> None:
        self._refuse_if_dead()
        try:
            self.heartbeat.refuse_if_lost()
        except LeaseLost as lost:
            self._end(lost)

    async def _attempt(self, call: StepCall, body: Body, calls: Calls, approval: str | None) -> Any:
        self._executing += 1
        try:
            with span(
                f"agent run step {call.name}",
                run=str(self.run.uuid),
                key=call.key,
                effect=str(call.effect),
                kind=str(call.kind),
            ):
                return await self._execute(call, body, calls, approval)
        except (SystemExit, KeyboardInterrupt) as error:
            # Whoever swallows what is to end the process can do no more.
            if self.interrupt is None:
                self.interrupt = error
            raise
        finally:
            self._executing -= 1

    async def _execute(self, call: StepCall, body: Body, calls: Calls, approval: str | None) -> Any:
        await self._fit_to_run(call, calls)
        if call.effect in FENCED_EFFECTS:
            refuse_inside_transaction(call)
            async with calls.one_write():
                return await self._write(call, body, calls, approval)
        if call.effect is ToolEffect.TRANSACTIONAL_WRITE:
            refuse_inside_transaction(call)
            async with calls.one_write():
                return await self._transaction(call, body, calls, approval)
        return await self._read(call, body, calls)

    async def _read(self, call: StepCall, body: Body, calls: Calls) -> Any:
        began = clock()
        try:
            with inside(call):
                value = await calls.body(body, idempotency_key(self.run.uuid, call.key))
            ending = Ending(StepOutcome.RETURNED, Payload.of(value))
        except (EffectNotApplied, EffectLanded) as said:
            ending = ending_said(said)
        ending = await self._record(call, replace(ending, began=began), None, calls)
        return self._give_back(ending, call.name)

    async def _write(self, call: StepCall, body: Body, calls: Calls, approval: str | None) -> Any:
        self._refuse_if_lost()
        self._writes += 1
        try:
            step = await self._stamp(call, calls, approval)
            ending = await self._run_fenced(call, step, body, calls)
            ending = await self._record(call, ending, step, calls)
        except ApprovalVoid:
            raise
        except BaseException as error:
            # Whatever it is, a fence may stand: nothing may go on as if the step had only failed.
            if self.interrupt is None:
                self._end(UncertainWrite(f"{call.name} was interrupted: {told(error)}"), error)
            raise
        finally:
            self._writes -= 1
        if self._stopping:
            self._end(GivenBack("the process is to stop"))
        return self._give_back(ending, call.name)

    async def _stamp(self, call: StepCall, calls: Calls, approval: str | None) -> Step:
        sent_at = clock()
        try:
            step = await calls.sql(partial(self._attempts.stamp, call, approval))
        except (LeaseLost, CancelRequested) as refusal:
            self._end(refusal)
        except ApprovalVoid:
            raise
        except BaseException as error:
            # Interrupted, or its commit is unknown: the fence may stand, the body does not start.
            self._end(WriteFailed(f"{call.name}: its fence could not be stamped"), error)
        self.heartbeat.note_renewal(sent_at)
        paused = clock() - sent_at
        if paused > conf.LEASE_SECONDS / 2 or self.heartbeat.lost is not None:
            why = f"the body did not start: {paused:.1f} s had passed since its fence was sent"
            self.unrecorded = (step, Ending(StepOutcome.NOT_STARTED, None, why))
            self._end(UncertainWrite(f"{call.name}: {why}"), TimeoutError(why))
        return step

    async def _run_fenced(self, call: StepCall, step: Step, body: Body, calls: Calls) -> Ending:
        """Run the body under its fence. Nothing but a known end comes back from here."""
        # What interrupts us before its end is noted must not make it count as over.
        self.unrecorded = (step, Ending(StepOutcome.RAISED, None, "its end was not seen"))
        try:
            with inside(call):
                value = await calls.body(body, step.idempotency_key)
        except (EffectNotApplied, EffectLanded) as said:
            return ending_said(said)
        except BaseException as error:
            raised = f"{class_name(error)}: {told(error)}"
            self.unrecorded = (step, Ending(StepOutcome.RAISED, None, raised, ended=clock()))
            if call.effect is ToolEffect.IDEMPOTENT_WRITE:
                self._end(WriteFailed(f"{call.name} raised {raised}"), error)
            advice = ADVICE if is_a(error, Exception) else ""
            self._end(UncertainWrite(f"{call.name} raised {raised}{advice}"), error)
        return ending_returned(value)

    async def _record(
        self, call: StepCall, ending: Ending, step: Step | None, calls: Calls
    ) -> Ending:
        """Record how a body ended; returns what was recorded, which may be a stand-in."""
        sent_at = clock()
        if step is not None:
            self.unrecorded = (step, ending)
        try:
            record = partial(self._attempts.record, call, ending, step)
            ending, cancel_requested = await calls.sql(record)
        except LeaseLost as lost:
            self._end(lost)
        except (Exception, asyncio.CancelledError) as error:
            if step is None and not is_failure_of_the_database(error):
                raise
            interrupt = SegmentInterrupt if step is None else UncertainWrite
            self._end(interrupt(f"{call.name} ended, but it could not be recorded"), error)
        if step is not None:
            self.unrecorded = None
        self._note_record(call, ending, sent_at)
        if cancel_requested:
            self._end(CancelRequested(f"run {self.run.uuid}: a cancel was requested"))
        return ending

    def _note_record(self, call: StepCall, ending: Ending, sent_at: float) -> None:
        self._journal.remember(Line.recorded(call, ending))
        self.heartbeat.note_record(sent_at)

    async def _transaction(
        self, call: StepCall, body: Body, calls: Calls, approval: str | None
    ) -> Any:
        if inspect.iscoroutinefunction(body):
            raise AgentRunError(
                f"{call.name}: the body of a transactional write must be a plain function"
            )
        self._refuse_if_lost()
        sent_at = clock()
        self._writes += 1
        try:
            ending, cancel_requested = await calls.sql(
                partial(self._attempts.commit, call, body, approval)
            )
        except RolledBack as rolled_back:
            raise rolled_back.error from cause_of(rolled_back.error)
        except (LeaseLost, CancelRequested) as lost:
            self._end(lost)
        except ApprovalVoid:
            raise
        except BaseException as error:
            # It may have committed: the code must not take it for a failure and do something else.
            self._end(WriteFailed(f"{call.name}: the end of its transaction is not known"), error)
        finally:
            self._writes -= 1
        self._note_record(call, ending, sent_at)
        if cancel_requested:
            self._end(CancelRequested(f"run {self.run.uuid}: a cancel was requested"))
        return self._give_back(ending, call.name)
