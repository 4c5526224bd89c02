"""Holds agents that run inside a tool to what that tool declares.

A sub-agent's tools are no steps: the fence around them is that of the tool that runs the sub-agent.
So a tool that is declared to read may not run an agent that writes.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import ToolEffect

from .current import current_step
from .durability import RunDurability
from .effects import Mapped, effect_of
from .exceptions import AgentRefused
from .refusals import refuse_native_tools
from .tools import facts_of

MAY_HOLD = {
    ToolEffect.READ_ONLY: frozenset({ToolEffect.READ_ONLY}),
    ToolEffect.IDEMPOTENT_WRITE: frozenset({ToolEffect.READ_ONLY, ToolEffect.IDEMPOTENT_WRITE}),
    ToolEffect.NON_IDEMPOTENT_WRITE: frozenset(ToolEffect),
}

# The effects mapping of the durable run that this code belongs to, in a step or between steps.
_durable_run: ContextVar[Mapped | None] = ContextVar("nrllm_durable_run", default=None)


@contextmanager
def durable_run(mapping: Mapped) -> Generator[None]:
    """Mark the code of a durable run: agents that it runs are held to its steps."""
    token = _durable_run.set(mapping)
    try:
        yield
    finally:
        _durable_run.reset(token)


def install() -> None:
    """Have every agent run that starts inside a durable run be guarded.

    Pydantic AI has no hook for runs that code starts by itself. `Agent.iter()` is the public method
    through which each of them goes.
    """
    original = Agent.iter
    if getattr(original, "__nrllm__", False):
        return

    @functools.wraps(original)
    def iter_guarded(self: Agent[Any, Any], *args: Any, **kwargs: Any) -> Any:
        given = list(kwargs.get("capabilities") or ())
        mapping = _durable_run.get()
        if mapping is not None and not any(isinstance(one, RunDurability) for one in given):
            kwargs["capabilities"] = [*given, _guard(mapping)]
        return original(self, *args, **kwargs)

    iter_guarded.__nrllm__ = True  # type: ignore[attr-defined]
    Agent.iter = iter_guarded  # type: ignore[method-assign]


def _guard(mapping: Mapped) -> InnerRunGuard:
    step = current_step()
    if step is None:
        # Between steps code runs again on each replay: nothing there may act.
        return InnerRunGuard(
            "the agent's own code, outside every step,", ToolEffect.READ_ONLY, mapping
        )
    if step.effect is ToolEffect.TRANSACTIONAL_WRITE:
        raise AgentRefused(
            f"the transactional write {step.name!r} runs an agent: a model request would hold its "
            "transaction open. Run the agent in a tool of its own"
        )
    return InnerRunGuard(f"the tool {step.name!r}", step.effect, mapping)


class InnerRunGuard(AbstractCapability[Any]):
    """Refuses tools that do more than the step around them declares."""

    def __init__(self, holder: str, limit: ToolEffect, mapping: Mapped) -> None:
        self.holder = holder
        self.limit = limit
        self.mapping = mapping

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _GuardedToolset(toolset, self)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        if self.limit is not ToolEffect.NON_IDEMPOTENT_WRITE:
            native = request_context.model_request_parameters.native_tools
            refuse_native_tools(native, self.mapping)
        return request_context

    def refuse(self, tool: ToolsetTool[Any]) -> None:
        effect = effect_of(facts_of(tool), self.mapping).declaration.effect
        if effect not in MAY_HOLD[self.limit]:
            raise AgentRefused(
                f"{self.holder} is {self.limit.value} and runs an agent whose tool "
                f"{tool.tool_def.name!r} is {effect.value}: declare the outer tool as what its agent "
                "does, or the inner one as what it does"
            )


@dataclass
class _GuardedToolset(WrapperToolset[Any]):
    guard: InnerRunGuard

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        self.guard.refuse(tool)
        return await super().call_tool(name, tool_args, ctx, tool)
