from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NoReturn

from .bodies import Body
from .calls import BlockingCalls, Calls, LoopCalls, drive
from .conf import conf
from .enums import StepKind, ToolEffect
from .exceptions import (
    AgentRunError,
    ApprovalDenied,
    ApprovalVoid,
    CancelRequested,
    LeaseLost,
    Parked,
)
from .execution import Execution
from .fields import label
from .journal import Line
from .models import StepCall


class Asking(Execution):
    """An execution whose calls a person may have to approve, and which may ask one a question."""

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

        Where several calls need one, `ask_approval` for each of them first, so that the run is parked
        once. The same name, key, kind and arguments must be given to `astep`.

        Raises:
            ApprovalDenied: a person denied the call; also in a replay.
            Parked: somebody has yet to decide; the run goes on in another segment.
        """
        call = self._call(name, effect, key, kind, arguments, None)
        if self._recorded(call) is None:
            await self._approve(call, self._loop)

    async def ask_approval(
        self,
        name: str,
        *,
        effect: ToolEffect = ToolEffect.NON_IDEMPOTENT_WRITE,
        key: str,
        kind: StepKind = StepKind.CALL,
        arguments: Any = None,
    ) -> None:
        """Put a call before a person and go on; `await_approval` with the same waits for the decision."""
        call = self._call(name, effect, key, kind, arguments, None)
        if self._recorded(call) is None:
            await self._put(self._approval_of(call), self._loop)

    async def ask_input(self, name: str, question: Any, *, key: str) -> None:
        """Put a question to a person and go on; `await_input` with the same waits for the answer."""
        call = self._call(name, ToolEffect.READ_ONLY, key, StepKind.INPUT, question, None)
        await self._put(call, self._loop)

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
            while True:
                approval = await self._approve(call, calls) if needs_approval else None
                try:
                    return await self._attempt(call, body, calls, approval)
                except ApprovalVoid as void:
                    await self._withdraw(void, calls)
        finally:
            self._in_flight.discard(call.key)

    async def _ask(self, question: StepCall, calls: Calls) -> Any:
        """Replay a person's answer, or ask, let the steps that go on end, and park."""
        recorded = await self._put(question, calls)
        if recorded is not None:
            return await self._replay(recorded, calls)
        return await self._park(question, calls)

    async def _put(self, question: StepCall, calls: Calls) -> Line | None:
        """Give back what is recorded about a question, or put it to a person."""
        recorded = self._recorded(question)
        if recorded is None:
            await self._fit_to_run(question, calls)
            try:
                await self._sql(calls, partial(self.run.ask, self.claim, question))
            except LeaseLost as lost:
                self._end(lost)
        return recorded

    async def _park(self, question: StepCall, calls: Calls) -> NoReturn:
        try:
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
        question = self._approval_of(call)
        decision = await self._ask(question, calls)
        if not isinstance(decision, dict) or decision.get("approved") is not True:
            note = decision.get("note", "") if isinstance(decision, dict) else ""
            raise ApprovalDenied(str(note))
        return question.key

    def _approval_of(self, call: StepCall) -> StepCall:
        asked = f"{call.key}?"
        if call.attempt > 1 and conf.APPROVAL_PER_ATTEMPT:
            self._journal.skip(asked)
            asked = f"{asked}{call.attempt}"
        return replace(
            call,
            key=label(asked, "an approval's key", 255),
            kind=StepKind.APPROVAL,
            effect=ToolEffect.READ_ONLY,
        )

    async def _withdraw(self, void: ApprovalVoid, calls: Calls) -> None:
        try:
            await self._sql(calls, partial(self.run.withdraw_approval, self.claim, void))
        except LeaseLost as lost:
            self._end(lost)
        self._journal.forget(void.key)
