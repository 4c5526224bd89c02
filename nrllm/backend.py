from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic_ai import Agent
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    ToolsetGetToolsId,
    durable_unit_scope,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import StepKind, ToolEffect
from agentruns.exceptions import ApprovalDenied, EffectLanded, EffectNotApplied

from .approvals import Approvals
from .current import CurrentStep, entered, in_flight
from .effects import Declaration
from .exceptions import AgentRefused, ResultNotStorable, UnclearOutcome
from .outcomes import SAYS_IT_HAPPENED, denied_payload, landed, retry_payload, settled
from .prechecks import refuse_unseen, refused_arguments
from .questions import AnswerNeeded, Answers, answering
from .responses import failure_payload, raise_recorded_failure, with_distinct_call_ids
from .steps import PlannedStep, Planner
from .threads import CallingThread, OwnThread, ReadPool, run_from_this_thread

if TYPE_CHECKING:
    from agentruns.segment import Segment

# An error that no hook of the agent may turn into a result: the run must not go on from it.
FATAL = (AgentRefused,)


class JournalBackend(DurableOperationBackend[Any]):
    """Runs each durable operation of Pydantic AI as a step of one segment, or replays it."""

    def __init__(
        self,
        segment: Segment,
        planner: Planner,
        reads: ReadPool,
        dynamic_toolsets: Mapping[str, AbstractToolset[Any]],
        approvals: Approvals,
    ) -> None:
        self._segment = segment
        self._approvals = approvals
        self._dynamic = dynamic_toolsets
        self._planner = planner
        self._reads = reads
        self.fatal: Exception | None = None
        self._calls: dict[str, _Call] = {}
        self._failed: list[tuple[PlannedStep, Exception]] = []

    def bind(
        self, operation: DurableOperation[Any, Any, Any]
    ) -> BoundDurableOperation[Any, Any, Any]:
        return _Step(operation, self)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: object | None, tool_name: str
    ) -> Any | Literal[False]:
        # Never False: no tool can opt out of its step.
        return tool if isinstance(tool, ToolsetTool) else ()

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()

    async def perform(
        self, operation: DurableOperation[Any, Any, Any], params: Any, tool: Any
    ) -> Any:
        """Give back an operation's encoded result, from the journal or by running it in a step."""
        if self.fatal is not None:
            raise self.fatal
        try:
            await self._record_survived_failures()
            plan = self._planner.plan(operation.operation_id, params, tool)
            payload = await self._once(plan, operation, params)
        except FATAL as error:
            self.fatal = error
            raise
        raise_recorded_failure(payload)
        return payload

    async def _record_survived_failures(self) -> None:
        """Write down the model requests that failed and that the run went on from (a fallback).

        Or a replay would ask the failed model again, and might go another way.
        """
        survived, self._failed = self._failed, []
        for plan, error in survived:
            await self._segment.astep(
                plan.name,
                partial(_as_recorded, failure_payload(error)),
                effect=ToolEffect.READ_ONLY,
                key=plan.key,
                kind=plan.kind,
                digest=plan.digest,
            )

    async def _once(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> Any:
        """Answer a call that a hook makes again under the same key from its first answer."""
        while (first := self._calls.get(plan.key)) is not None:
            if (first.name, first.arguments) != (plan.name, plan.arguments):
                raise AgentRefused(
                    f"calls of {first.name!r} and of {plan.name!r} with other arguments have one id, "
                    f"that of step {plan.key!r}, and would be taken for one call. Code that makes "
                    "calls of its own inside one gives each an id: ctx.tool_manager.handle_call("
                    "ToolCallPart(name, arguments))"
                )
            await first.ended.wait()
            if first.answered:
                return first.payload
        call = self._calls[plan.key] = _Call(plan.name, plan.arguments)
        try:
            refused = await self._refused_arguments(plan, operation, params)
            call.payload = refused or await self._in_step(plan, operation, params)
            call.answered = True
            return call.payload
        finally:
            if not call.answered:
                # A read that failed may be asked again; after a write that failed nothing goes on.
                del self._calls[plan.key]
            call.ended.set()

    async def _refused_arguments(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> Any:
        toolset = self._dynamic_toolset(operation)
        if plan.precheck_key is None or toolset is None:
            return None

        async def check(key: str) -> Any:
            with durable_unit_scope(), Agent.using_thread_executor(self._reads):
                return await refused_arguments(toolset, params, plan.declaration)

        return await self._segment.astep(
            f"{plan.name}: arguments",
            check,
            effect=ToolEffect.READ_ONLY,
            key=plan.precheck_key,
            arguments=plan.arguments,
        )

    async def _refuse_unseen(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> None:
        """Look at a dynamic toolset's read before it runs; a write was looked at before its stamp."""
        toolset = self._dynamic_toolset(operation)
        if plan.is_tool_call and plan.precheck_key is None and toolset is not None:
            await refuse_unseen(toolset, params, plan.declaration)

    def _dynamic_toolset(
        self, operation: DurableOperation[Any, Any, Any]
    ) -> AbstractToolset[Any] | None:
        return self._dynamic.get(getattr(operation.operation_id, "toolset_id", ""))

    async def _in_step(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> Any:
        """Execute the step; again with the answer when a tool's body asked a person."""
        if not plan.is_tool_call:
            return await self._execute(plan, operation, params)
        answers = Answers()
        while True:
            try:
                with answering(answers):
                    return await self._execute(plan, operation, params)
            except AnswerNeeded as needed:
                key = f"{plan.key}?{len(answers.given) + 1}"
                # Nothing may be awaited before it: siblings that have ended are parked with it.
                await self._segment.ask_input(plan.name, needed.question, key=key)
                await self._approvals.ask_about_response(params)
                answer = await self._segment.await_input(plan.name, needed.question, key=key)
                answers.given.append(answer)

    async def _execute(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> Any:
        try:
            return await self._segment.astep(
                plan.name,
                self._body(plan, operation, params),
                effect=plan.declaration.effect,
                key=plan.key,
                kind=plan.kind,
                arguments=plan.arguments,
                digest=plan.digest,
                needs_approval=plan.needs_approval,
            )
        except ApprovalDenied as denied:
            # Asked for here, not before: the call was made by code, not by the model.
            if not plan.is_tool_call:
                raise
            return denied_payload(denied.note)
        except EffectNotApplied as said:
            self._planner.not_applied(plan)
            return said.answer
        except Exception as error:
            if plan.kind is StepKind.MODEL:
                self._failed.append((plan, error))
            raise

    def _body(
        self, plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any
    ) -> Callable[[str], Any]:
        async def body(key: str, executor: CallingThread | None = None) -> Any:
            step = CurrentStep(plan.name, plan.key, plan.declaration.effect, key)
            threads = executor or self._threads(plan)
            with (
                entered(step),
                in_flight(step),
                durable_unit_scope(),
                Agent.using_thread_executor(threads),
            ):
                try:
                    await self._refuse_unseen(plan, operation, params)
                    payload = await _run(plan, operation, params, step)
                    if executor is not None:
                        _refuse_outside_transaction(plan, payload, executor)
                    return payload
                finally:
                    if isinstance(threads, OwnThread):
                        await threads.ended()

        if plan.declaration.effect is not ToolEffect.TRANSACTIONAL_WRITE:
            return body
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def transactional(key: str) -> Any:
            return run_from_this_thread(loop, context, lambda executor: body(key, executor))

        return transactional

    def _threads(self, plan: PlannedStep) -> Executor:
        """Where the synchronous functions of this step run."""
        reads = plan.declaration.effect is ToolEffect.READ_ONLY
        return self._reads if reads else OwnThread()


def _as_recorded(payload: Any, key: str) -> Any:
    return payload


async def _run(
    plan: PlannedStep, operation: DurableOperation[Any, Any, Any], params: Any, step: CurrentStep
) -> Any:
    try:
        result = await operation.handler(params)
    except EffectNotApplied as said:
        if plan.declaration.effect is ToolEffect.READ_ONLY:
            return retry_payload(said.answer)
        if step.inner.wrote:
            why = "an agent inside it had started a write"
            raise UnclearOutcome(plan.name, type(said).__name__, why) from said
        raise EffectNotApplied(retry_payload(said.answer)) from said
    payload = _encoded(plan, operation, result)
    if plan.kind is StepKind.MODEL:
        return with_distinct_call_ids(payload)
    if not plan.is_tool_call:
        return payload
    return settled(payload, _what_still_holds(plan.declaration, step), plan.name)


def _what_still_holds(declaration: Declaration, step: CurrentStep) -> Declaration:
    """Believe no retry any more once an agent inside the tool has started a write."""
    return replace(declaration, retry_means_not_applied=False) if step.inner.wrote else declaration


def _refuse_outside_transaction(plan: PlannedStep, payload: Any, thread: CallingThread) -> None:
    """Refuse to record as committed what did not run on the thread that holds the transaction."""
    if payload["kind"] in SAYS_IT_HAPPENED and not thread.served:
        raise AgentRefused(
            f"the transactional write {plan.name!r} did not run in its transaction: something "
            "around it awaits, or calls it in a way of its own. What it wrote, if anything, is "
            "neither rolled back nor fenced. Make it a plain `def` tool of a FunctionToolset, or "
            "declare it an idempotent or a non-idempotent write"
        )


def _encoded(plan: PlannedStep, operation: DurableOperation[Any, Any, Any], result: Any) -> Any:
    """Encode a result. That it can't be encoded is known to have come after the effect."""
    try:
        return operation.result_codec.dump(result)
    except Exception as error:
        message = f"the result of {plan.name!r} can't be kept as JSON: {error}"
        if isinstance(operation.operation_id, ToolsetGetToolsId):
            message += (
                "; what a tool's metadata can't hold is declared in register_agent(effects=...)"
            )
        acted = plan.declaration.effect is not ToolEffect.READ_ONLY
        if acted and landed(result):
            raise EffectLanded(message) from error
        raise ResultNotStorable(message) from error


@dataclass(slots=True)
class _Call:
    """One key's call in this segment; a second one under the same key waits for its answer."""

    name: str
    arguments: Any
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False
    payload: Any = None


@dataclass(frozen=True, slots=True)
class _Step(BoundDurableOperation[Any, Any, Any]):
    bound: DurableOperation[Any, Any, Any]
    backend: JournalBackend

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self.bound

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        payload = await self.backend.perform(self.bound, params, config)
        return self.bound.result_codec.load(payload)
