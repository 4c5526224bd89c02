from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.db import DatabaseError, connections, transaction

from .calls import BlockingCalls, Calls, LoopCalls, drive
from .clock import clock
from .conf import conf
from .enums import FENCED_EFFECTS, StepKind, StepOutcome, StepState, ToolEffect
from .exceptions import (
    AgentRunError,
    ApprovalDenied,
    CancelRequested,
    EffectLanded,
    EffectNotApplied,
    GivenBack,
    InsideTransaction,
    JournalMismatch,
    LandedWithoutResult,
    LeaseLost,
    Parked,
    PayloadError,
    SegmentInterrupt,
    UncertainWrite,
    WriteFailed,
)
from .fields import Payload, label, storable
from .heartbeat import Heartbeat
from .journal import Journal
from .models import AgentRun, Step, StepCall
from .models.step import Ending, idempotency_key, recorded_columns
from .sqlthread import WORTH_ANOTHER_CONNECTION, SqlThread, on_new_connections
from .telemetry import span

if TYPE_CHECKING:
    from .guard import Claim

logger = logging.getLogger(__name__)

Body = Callable[[str], Any]
T = TypeVar("T")

_inside: ContextVar[StepCall | None] = ContextVar("agentruns_inside_step", default=None)


class Segment:
    """One continuous execution of a run under one claim: what an agent's function receives.

    A step that is in the journal is replayed; another one is executed and recorded. Anything that
    ends the segment makes it dead: every later step raises the same, so that code which swallowed
    it can do no more.
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
        # The attempts that this segment knows to be stamped: not what a lost commit may have left.
        self._stamped: set[int] = set()
        self._replaying = 0
        self._executing = 0
        self._writes = 0
        self._process = os.getpid()
        self._stopping = False
        self._on_loop = False
        self.settling = False

    @cached_property
    def request(self) -> Any:
        """The run's request, decoded. None where none was given.

        Raises:
            PayloadUnreadable: the stored text is damaged.
        """
        return None if self._request is None else self._request.value

    # The life of a segment; for the runner.

    def open(self) -> None:
        """Read the request and the journal, and land the first heartbeat.

        Raises:
            LeaseLost: the run was lost before its first step.
        """
        self.sql.submit(partial(on_new_connections, self._load, conf.RECORD_RETRY_SECONDS)).result()
        self.heartbeat.start()

    def _load(self, again: bool) -> None:
        self._request = AgentRun.objects.values_list("request", flat=True).get(pk=self.run.pk)
        self._journal.load()

    def close(self) -> None:
        if self.interrupt is None:
            self.interrupt = LeaseLost(f"the segment of run {self.run.uuid} has ended")
        self.heartbeat.stop()
        self.sql.close()

    @property
    def body_is_over(self) -> bool:
        """Whether the body of the unrecorded write is known to act no more.

        One on an event loop may have left its work to a thread that goes on after its cancellation.
        """
        if self.unrecorded is None:
            return True
        _step, ending = self.unrecorded
        return ending.outcome is not StepOutcome.RAISED or not self._on_loop

    def ask_to_stop(self) -> bool:
        """Ask it to give the run back. Returns whether it may be interrupted at once.

        Inside a write it may not: the write is finished and recorded first. Nor when the agent's
        function has ended and the run is being settled.
        """
        self._stopping = True
        at_once = self._writes == 0 and not self.settling
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

    # Steps.

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
            SegmentInterrupt: the segment has ended; let it pass.
            Exception: what the body of a read or of a transactional write raised.
        """
        if inspect.iscoroutinefunction(body):
            raise TypeError(f"step {name!r} has an async body: use astep()")
        refuse_generator(name, body)
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
        self._on_loop = True
        refuse_generator(name, body)
        call = self._call(name, effect, key, kind, arguments, digest)
        return await self._perform(call, body, self._loop, needs_approval)

    async def await_approval(
        self,
        name: str,
        *,
        effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
        key: str,
        kind: StepKind = StepKind.CALL,
        arguments: Any = None,
    ) -> None:
        """Ask for the approval of a call that `astep(..., needs_approval=True)` is to make later.

        Where several calls need one, ask for all of them side by side before the first is made, so
        that the run is parked once. The same name, key, kind and arguments must be given to `astep`.

        Raises:
            ApprovalDenied: a person denied the call; also in a replay.
            Parked: somebody has yet to decide; the run goes on in another segment.
        """
        call = self._call(name, effect, key, kind, arguments, None)
        if self._recorded(call) is None:
            await self._approve(call, self._loop)

    def wait_for_input(self, name: str, question: Any, *, key: str | None = None) -> Any:
        """Give back a person's answer to `question` (JSON), or park the run until there is one.

        Raises:
            Parked: nobody has answered yet; the run goes on in another segment.
        """
        call = self._call(name, ToolEffect.READ_ONLY, key, StepKind.INPUT, question, None)
        return drive(self._ask(call, self._blocking))

    async def await_input(self, name: str, question: Any, *, key: str | None = None) -> Any:
        """The same as `wait_for_input`, on an event loop."""
        call = self._call(name, ToolEffect.READ_ONLY, key, StepKind.INPUT, question, None)
        return await self._ask(call, self._loop)

    @cached_property
    def _blocking(self) -> BlockingCalls:
        return BlockingCalls(self.sql)

    @cached_property
    def _loop(self) -> LoopCalls:
        return LoopCalls(self.sql)

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
        enclosing = _inside.get()
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

    async def _perform(self, call: StepCall, body: Body, calls: Calls, needs_approval: bool) -> Any:
        recorded = self._recorded(call)
        if recorded is not None:
            return await self._replay(recorded, calls)
        if call.key in self._in_flight:
            raise AgentRunError(f"step {call.key!r} is being executed: give each call its own key")
        self._in_flight.add(call.key)
        try:
            if conf.WRITES_NEED_APPROVAL and call.effect is not ToolEffect.READ_ONLY:
                needs_approval = True
            approval = await self._approve(call, calls) if needs_approval else None
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
                self.interrupt = self.interrupt or error
                raise
            finally:
                self._executing -= 1
        finally:
            self._in_flight.discard(call.key)

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

    def _recorded(self, call: StepCall) -> Step | None:
        try:
            return self._journal.replay(call)
        except JournalMismatch as error:
            self._end(error)

    async def _replay(self, step: Step, calls: Calls) -> Any:
        self._replaying += 1
        try:
            result = await self._sql(calls, partial(read_result, self.run, step.key))
        finally:
            self._replaying -= 1
        return self._give_back(Ending(StepOutcome(step.outcome), result, step.error), step.name)

    async def _sql(self, calls: Calls, function: Callable[[], T]) -> T:
        """Do what may be sent twice; a database that stays away ends the segment.

        Code that catches exceptions must not take that for the end of the step itself.
        """
        again = partial(on_new_connections, lambda again: function(), conf.RECORD_RETRY_SECONDS)
        try:
            return await calls.sql(again)
        except WORTH_ANOTHER_CONNECTION as error:
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

    def _give_back(self, ending: Ending, name: str) -> Any:
        """What a recorded ending gives to the code: now, and in every replay."""
        if ending.outcome is StepOutcome.LANDED_WITHOUT_RESULT:
            self._end(
                LandedWithoutResult(f"{name} landed, but its result was lost: {ending.error}")
            )
        value = None if ending.result is None else ending.result.value
        if ending.outcome is StepOutcome.EFFECT_NOT_APPLIED:
            raise EffectNotApplied(value)
        return value

    async def _read(self, call: StepCall, body: Body, calls: Calls) -> Any:
        try:
            with inside(call):
                value = await calls.body(body, idempotency_key(self.run.uuid, call.key))
            ending = Ending(StepOutcome.RETURNED, Payload.of(value))
        except (EffectNotApplied, EffectLanded) as said:
            ending = ending_said(said)
        await self._record(call, ending, None, calls)
        return self._give_back(ending, call.name)

    async def _write(self, call: StepCall, body: Body, calls: Calls, approval: str | None) -> Any:
        self._refuse_if_lost()
        self._writes += 1
        try:
            step = await self._stamp(call, calls, approval)
            ending = await self._run_fenced(call, step, body, calls)
            await self._record(call, ending, step, calls)
        except BaseException as error:
            # Whatever it is, a fence may stand: nothing may go on as if the step had only failed.
            if self.interrupt is None:
                self._end(UncertainWrite(f"{call.name} was interrupted: {storable(error)}"), error)
            raise
        finally:
            self._writes -= 1
        if self._stopping:
            self._end(GivenBack("the process is to stop"))
        return self._give_back(ending, call.name)

    async def _stamp(self, call: StepCall, calls: Calls, approval: str | None) -> Step:
        sent_at = clock()
        try:
            step = await calls.sql(partial(self._stamp_on_thread, call, approval))
        except (LeaseLost, CancelRequested) as refusal:
            self._end(refusal)
        except BaseException as error:
            # Interrupted, or its commit is unknown: the fence may stand, the body does not start.
            self._end(WriteFailed(f"{call.name}: its fence could not be stamped"), error)
        self.heartbeat.note_renewal(sent_at)
        paused = clock() - sent_at
        if paused > conf.LEASE_SECONDS / 2 or self.heartbeat.lost is not None:
            why = f"the body did not start: {paused:.1f} s had passed since its fence was sent"
            self.unrecorded = (step, Ending(StepOutcome.NOT_STARTED, None, why))
            self._end(UncertainWrite(f"{call.name}: {why}"))
        return step

    def _stamp_on_thread(self, call: StepCall, approval: str | None) -> Step:
        def attempt(again: bool) -> Step:
            if again:
                own = self.run.own_attempt(self.claim, call.key)
                unseen = own is not None and own.pk not in self._stamped
                if own is not None and unseen and own.state == StepState.STARTED:
                    return own
            return self.run.mark_pending_effect(self.claim, call, approval)

        step = on_new_connections(attempt, conf.LEASE_SECONDS / 2)
        self._stamped.add(step.pk)
        return step

    async def _run_fenced(self, call: StepCall, step: Step, body: Body, calls: Calls) -> Ending:
        """Run the body under its fence. Nothing but a known end comes back from here."""
        try:
            with inside(call):
                value = await calls.body(body, step.idempotency_key)
        except (EffectNotApplied, EffectLanded) as said:
            return ending_said(said)
        except BaseException as error:
            raised = f"{type(error).__name__}: {storable(error)}"
            self.unrecorded = (step, Ending(StepOutcome.RAISED, None, raised))
            interrupt = (
                WriteFailed if call.effect is ToolEffect.IDEMPOTENT_WRITE else UncertainWrite
            )
            self._end(interrupt(f"{call.name} raised {raised}"), error)
        return ending_returned(value)

    async def _record(
        self, call: StepCall, ending: Ending, step: Step | None, calls: Calls
    ) -> None:
        sent_at = clock()
        if step is not None:
            self.unrecorded = (step, ending)
        try:
            cancel_requested = await calls.sql(partial(self._record_on_thread, call, ending, step))
        except LeaseLost as lost:
            self._end(lost)
        except WORTH_ANOTHER_CONNECTION as error:
            interrupt = SegmentInterrupt if step is None else UncertainWrite
            self._end(interrupt(f"{call.name} ended, but it could not be recorded"), error)
        except (Exception, asyncio.CancelledError) as error:
            if step is None:
                raise
            self._end(UncertainWrite(f"{call.name} was interrupted in its record"), error)
        if step is not None:
            self.unrecorded = None
        self._note_record(call, ending, sent_at)
        if cancel_requested:
            self._end(CancelRequested(f"run {self.run.uuid}: a cancel was requested"))

    def _note_record(self, call: StepCall, ending: Ending, sent_at: float) -> None:
        recorded = recorded_columns(call.key, replace(ending, result=None))
        self._journal.remember(Step.of(self.run, self.claim, call, call.attempt, **recorded))
        self.heartbeat.note_record(sent_at)

    def _record_on_thread(self, call: StepCall, ending: Ending, step: Step | None) -> bool:
        def attempt(again: bool) -> bool:
            if again:
                own = self.run.own_attempt(self.claim, call.key)
                if own is not None and own.state == StepState.RECORDED:
                    return False
            return self.run.record_step(self.claim, call, ending, step)

        try:
            return on_new_connections(attempt, conf.RECORD_RETRY_SECONDS)
        except DatabaseError as error:
            if isinstance(error, WORTH_ANOTHER_CONNECTION) or step is None:
                raise
            # The effect happened; what can't be stored is its result.
            logger.exception("the result of step %s could not be stored", call.key)
            stand_in = Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, storable(error))
            return self.run.record_step(self.claim, call, stand_in, step)

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
                partial(self._transaction_on_thread, call, body, approval)
            )
        except RolledBack as rolled_back:
            raise rolled_back.error from rolled_back.error.__cause__
        except (LeaseLost, CancelRequested) as lost:
            self._end(lost)
        except BaseException as error:
            # It may have committed: the code must not take it for a failure and do something else.
            self._end(WriteFailed(f"{call.name}: the end of its transaction is not known"), error)
        finally:
            self._writes -= 1
        self._note_record(call, ending, sent_at)
        if cancel_requested:
            self._end(CancelRequested(f"run {self.run.uuid}: a cancel was requested"))
        return self._give_back(ending, call.name)

    def _transaction_on_thread(
        self, call: StepCall, body: Body, approval: str | None
    ) -> tuple[Ending, bool]:
        key = idempotency_key(self.run.uuid, call.key)
        try:
            with transaction.atomic(using=conf.DATABASE, durable=True):
                if approval is not None:
                    self.run.use_approval(self.claim, call, approval)
                ending = self._transactional_body(call, body, key)
                return ending, self.run.record_step(self.claim, call, ending)
        except EffectNotApplied as said:
            return ending_said(said), self._record_on_thread(call, ending_said(said), None)
        except WORTH_ANOTHER_CONNECTION as error:
            own = on_new_connections(
                lambda again: self.run.own_attempt(self.claim, call.key),
                conf.RECORD_RETRY_SECONDS,
            )
            if own is None or own.state != StepState.RECORDED:
                raise error
            return own.ending, False

    def _transactional_body(self, call: StepCall, body: Body, key: str) -> Ending:
        """Run the body in the open transaction.

        Raises:
            RolledBack: with what the body raised, or why its transaction can't be committed.
        """
        connection = connections[conf.DATABASE]
        opened, savepoint = connection.connection, connection.savepoint()
        try:
            with inside(call), only_this_database():
                value = body(key)
            if connection.connection is not opened or not connection.in_atomic_block:
                raise AgentRunError(f"{call.name}: the body left the transaction of its step")
            if savepoint is not None:
                connection.savepoint_commit(savepoint)
            refuse_what_acts_later(call, value)
            return Ending(StepOutcome.RETURNED, Payload.of(value))
        except EffectNotApplied:
            raise
        except BaseException as error:
            raise RolledBack(error) from error

    async def _ask(self, question: StepCall, calls: Calls) -> Any:
        """Replay a person's answer, or ask, let the steps that go on end, and park."""
        recorded = self._recorded(question)
        if recorded is not None:
            return await self._replay(recorded, calls)
        await self._fit_to_run(question, calls)
        return await self._park(question, calls)

    async def _park(self, question: StepCall, calls: Calls) -> NoReturn:
        try:
            await self._sql(calls, partial(self.run.ask, self.claim, question))
            await calls.quiet(lambda: self._executing == 0)
            await self._sql(calls, partial(self.run.suspend, self.claim))
        except (LeaseLost, CancelRequested) as refusal:
            self._end(refusal)
        self._end(Parked(f"run {self.run.uuid} waits for {question.key!r}"))

    async def _approve(self, call: StepCall, calls: Calls) -> str:
        """Return the key of the decision that allows this call, or park until there is one.

        Raises:
            ApprovalDenied: the decision is anything but an explicit yes.
        """
        asked = f"{call.key}?"
        if call.attempt > 1 and conf.APPROVAL_PER_ATTEMPT:
            self._journal.skip(asked)
            asked = f"{asked}{call.attempt}"
        question = replace(
            call,
            key=label(asked, "an approval's key", 255),
            kind=StepKind.APPROVAL,
            effect=ToolEffect.READ_ONLY,
        )
        decision = await self._ask(question, calls)
        if not isinstance(decision, dict) or decision.get("approved") is not True:
            note = decision.get("note", "") if isinstance(decision, dict) else ""
            raise ApprovalDenied(str(note))
        return question.key


def refuse_generator(name: str, body: Body) -> None:
    """Refuse a body that would only make a generator, and never start."""
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"step {name!r} has a generator for a body: give it a function that acts")


class RolledBack(Exception):
    """Carries what a transactional body raised out of its transaction, which is rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def refuse_what_acts_later(call: StepCall, value: Any) -> None:
    """Refuse a transactional body that leaves something to do after its record."""
    if inspect.isawaitable(value):
        raise AgentRunError(f"{call.name}: the body of a transactional write returned an awaitable")
    if connections[conf.DATABASE].run_on_commit:
        raise AgentRunError(
            f"{call.name}: a transactional write can't register on_commit callbacks, which would "
            "act after its record; make what they do a step of its own"
        )


def read_result(run: AgentRun, key: str) -> Payload | None:
    recorded = Step.objects.filter(run_id=run.pk, recorded_key=key)
    result: Payload | None = recorded.values_list("result", flat=True).get()
    return result


def ending_said(said: EffectNotApplied | EffectLanded) -> Ending:
    if isinstance(said, EffectLanded):
        return Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, storable(said))
    try:
        return Ending(StepOutcome.EFFECT_NOT_APPLIED, Payload.of(said.answer))
    except PayloadError as error:
        return Ending(StepOutcome.EFFECT_NOT_APPLIED, None, storable(error))


def ending_returned(value: Any) -> Ending:
    """The ending of a write that returned: it landed, whether or not its result can be kept."""
    try:
        return Ending(StepOutcome.RETURNED, Payload.of(value))
    except PayloadError as error:
        return Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, storable(error))


def refuse_inside_transaction(call: StepCall) -> None:
    """Refuse a write in `atomic()`: it could be rolled back after the step was recorded."""
    if connections[conf.DATABASE].in_atomic_block:
        raise InsideTransaction(
            f"step {call.name!r} is a write and was called inside atomic(): leave the transaction "
            "first, or declare the step a transactional write"
        )


@contextmanager
def inside(call: StepCall) -> Iterator[None]:
    token = _inside.set(call)
    try:
        yield
    finally:
        _inside.reset(token)


@contextmanager
def only_this_database() -> Iterator[None]:
    """Refuse statements on other databases: they would not commit with the step."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> NoReturn:
        raise AgentRunError(
            f"a transactional write used database {context['connection'].alias!r}; it commits with "
            f"its step only in {conf.DATABASE!r}"
        )

    others = [alias for alias in connections if alias != conf.DATABASE]
    wrappers = [connections[alias].execute_wrapper(refuse) for alias in others]
    for wrapper in wrappers:
        wrapper.__enter__()
    try:
        yield
    finally:
        for wrapper in wrappers:
            wrapper.__exit__(None, None, None)
