"""People in the loop: approvals of tool calls, and questions that a tool asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDenied

from agentruns.conf import conf
from agentruns.enums import ToolEffect
from agentruns.exceptions import ApprovalDenied

from .effects import Declaration
from .steps import PlannedStep, Planner, is_of_the_model

if TYPE_CHECKING:
    from agentruns.segment import Segment


def needs_approval(tool_kind: str, declaration: Declaration) -> bool:
    """Whether a person has to allow each call of a tool, whoever said so."""
    writes = declaration.effect is not ToolEffect.READ_ONLY
    return (
        tool_kind == "unapproved"
        or declaration.needs_approval
        or (writes and conf.WRITES_NEED_APPROVAL)
    )


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
        asked = [self._decision(ctx, call) for call in calls]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {
            call.tool_call_id: answer
            for call, answer in zip(calls, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def _decision(self, ctx: RunContext[Any], call: ToolCallPart) -> bool | ToolDenied:
        plan = await self._plan(ctx, call)
        if plan is None:
            return True
        try:
            await self._segment.await_approval(
                plan.name,
                effect=plan.declaration.effect,
                key=plan.key,
                kind=plan.kind,
                arguments=plan.arguments,
            )
        except ApprovalDenied as denied:
            return ToolDenied(denied.note) if denied.note else ToolDenied()
        return True

    async def _plan(self, ctx: RunContext[Any], call: ToolCallPart) -> PlannedStep | None:
        """The step that the call will be, with the arguments that its body will get.

        None where it asks for its approval itself: code made the call, not the model.
        """
        if ctx.tool_manager is None:
            return None
        validated = await ctx.tool_manager.validate_tool_call(call, approved=True)
        if validated.tool is None or not is_of_the_model(validated.ctx):
            return None
        arguments = validated.validated_args
        return self._planner.approval(
            validated.ctx, validated.tool.tool_def, call.tool_name, arguments
        )
