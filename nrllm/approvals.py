"""People in the loop: approvals of tool calls, and questions that a tool asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDenied

from agentruns.exceptions import ApprovalDenied

from .steps import PlannedStep, Planner, is_of_the_model, last_response

if TYPE_CHECKING:
    from agentruns.segment import Segment


def _about(plan: PlannedStep) -> dict[str, Any]:
    return {
        "effect": plan.declaration.effect,
        "key": plan.key,
        "kind": plan.kind,
        "arguments": plan.arguments,
    }


def _waits(manager: ToolManager[Any], call: ToolCallPart) -> bool:
    definition = manager.get_tool_def(call.tool_name)
    return definition is not None and definition.kind == "unapproved"


class Approvals(AbstractCapability[Any]):
    """Asks a person about the calls of a response that need an approval: about all of them at once.

    Outermost, so that no handler of the agent gives the approval instead.
    """

    def __init__(self, segment: Segment, planner: Planner) -> None:
        self._segment = segment
        self._planner = planner

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if not requests.approvals:
            return None
        decisions = await self._decisions(ctx, requests.approvals)
        return requests.build_results(approvals=decisions)

    async def _decisions(
        self, ctx: RunContext[Any], calls: Sequence[ToolCallPart]
    ) -> dict[str, bool | ToolDenied]:
        """Ask about every call before the first of them parks the run."""
        plans = await self._ask(ctx, calls)
        return {
            call.tool_call_id: await self._decision(plan)
            for call, plan in zip(calls, plans, strict=True)
        }

    async def ask_about_response(self, params: Any) -> None:
        """Ask about every call of a tool call's response that is known to need an approval.

        One whose arguments are refused is not asked about, nor one that asks by an exception of its
        own: that is known when it is called.
        """
        ctx: RunContext[Any] | None = getattr(params, "ctx", None)
        if ctx is None or ctx.tool_manager is None or not is_of_the_model(ctx):
            return
        calls = [call for call in last_response(ctx).tool_calls if _waits(ctx.tool_manager, call)]
        await self._ask(ctx, calls)

    async def _ask(
        self, ctx: RunContext[Any], calls: Sequence[ToolCallPart]
    ) -> list[PlannedStep | None]:
        plans = [await self._plan(ctx, call) for call in calls]
        for plan in plans:
            if plan is not None:
                await self._segment.ask_approval(plan.name, **_about(plan))
        return plans

    async def _decision(self, plan: PlannedStep | None) -> bool | ToolDenied:
        if plan is None:
            return True
        try:
            await self._segment.await_approval(plan.name, **_about(plan))
        except ApprovalDenied as denied:
            return ToolDenied(denied.note) if denied.note else ToolDenied()
        return True

    async def _plan(self, ctx: RunContext[Any], call: ToolCallPart) -> PlannedStep | None:
        """The step that the call will be, with the arguments that its body will get.

        None where it asks for its approval itself, since code made the call and not the model; or
        where its arguments are refused, which the model is told when the call is made.
        """
        if ctx.tool_manager is None:
            return None
        try:
            validated = await ctx.tool_manager.validate_tool_call(
                call, approved=True, wrap_validation_errors=False
            )
        except (ValidationError, ModelRetry, ToolFailed):
            return None
        if validated.tool is None or not is_of_the_model(validated.ctx):
            return None
        arguments = validated.validated_args
        return self._planner.approval(validated.ctx, validated.tool, call.tool_name, arguments)
