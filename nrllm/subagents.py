"""Holds agents that run inside a tool to what that tool declares.

A sub-agent's tools are no steps: the fence around them is that of the tool that runs the sub-agent.
So a tool that is declared to read may not run an agent that writes, and what only a step can keep (an
approval, `once_per_run`, a verification) is refused there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import ToolEffect
from agentruns.exceptions import EffectNotApplied

from .catalog import Seen, seen_of
from .current import CurrentStep, current_step, entered, steps_on_main_thread
from .durability import RunDurability
from .effects import STRICTNESS, Declaration, effect_of
from .exceptions import AgentRefused
from .outcomes import retry_payload
from .refusals import output_parts, refuse_inside, refuse_native_tools, refuse_output
from .tools import facts_of, schema_of

MAY_HOLD = {
    ToolEffect.READ_ONLY: frozenset({ToolEffect.READ_ONLY}),
    ToolEffect.IDEMPOTENT_WRITE: frozenset({ToolEffect.READ_ONLY, ToolEffect.IDEMPOTENT_WRITE}),
    ToolEffect.NON_IDEMPOTENT_WRITE: frozenset(ToolEffect),
}

# Whether this code belongs to a durable run, in a step or between steps.
_durable_run: ContextVar[bool] = ContextVar("nrllm_durable_run", default=False)
# How many durable runs there are on the process's main thread, where a queue's worker has them. A
# thread that one of them starts knows nothing of it, but nobody else is at work there.
_on_main_thread = 0


@contextmanager
def durable_run() -> Generator[None]:
    """Mark the code of a durable run: agents that it runs are held to its steps."""
    global _on_main_thread
    here = int(threading.current_thread() is threading.main_thread())
    token = _durable_run.set(True)
    _on_main_thread += here
    try:
        yield
    finally:
        _on_main_thread -= here
        _durable_run.reset(token)


def _belongs_to_durable_run() -> bool:
    return _durable_run.get() or _on_main_thread > 0


def _step_around() -> CurrentStep | None:
    """The step that this code is a part of; in a thread that does not know, the strictest there is."""
    if _durable_run.get():
        return current_step()
    steps = steps_on_main_thread()
    return min(steps, key=lambda step: STRICTNESS[step.effect]) if steps else None


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
        if _belongs_to_durable_run() and not any(isinstance(one, RunDurability) for one in given):
            for part in output_parts(kwargs.get("output_type") or self.output_type):
                refuse_output(part, {})
            kwargs["capabilities"] = [*given, InnerRunGuard(_step_around(), seen_of(self))]
        return original(self, *args, **kwargs)

    iter_guarded.__nrllm__ = True  # type: ignore[attr-defined]
    Agent.iter = iter_guarded  # type: ignore[method-assign]


class InnerRunGuard(AbstractCapability[Any]):
    """Refuses tools that do more than the step around them declares, or that only a step can keep.

    The outer agent's mapping speaks of its own tools: none of these is declared by it.
    """

    def __init__(self, step: CurrentStep | None, seen: dict[int, Seen]) -> None:
        if step is not None and step.effect is ToolEffect.TRANSACTIONAL_WRITE:
            raise AgentRefused(
                f"the transactional write {step.name!r} runs an agent: a model request would hold its "
                "transaction open. Run the agent in a tool of its own"
            )
        self.step = step
        self._seen = seen
        # Between steps code runs again on each replay: nothing there may act.
        self.limit = ToolEffect.READ_ONLY if step is None else step.effect
        self.holder = (
            "the agent's own code, outside every step (or in a thread or task that does not know "
            "its step: contextvars.copy_context().run tells it),"
            if step is None
            else f"the tool {step.name!r}"
        )

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _GuardedToolset(toolset, self)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        if self.limit is not ToolEffect.NON_IDEMPOTENT_WRITE:
            native = request_context.model_request_parameters.native_tools
            refuse_native_tools(native, {})
        return request_context

    def held(self, tool: ToolsetTool[Any]) -> Declaration:
        return effect_of(facts_of(tool, self._of(tool).metadata), {}).declaration

    def refuse_unkept(self, tool: ToolsetTool[Any]) -> None:
        definition = tool.tool_def
        timeout = definition.timeout if definition.timeout is not None else self._of(tool).timeout
        refuse_inside(self.holder, definition.name, self.held(tool), definition.kind, timeout)

    def refuse_excess(self, tool: ToolsetTool[Any]) -> None:
        effect = self.held(tool).effect
        if effect not in MAY_HOLD[self.limit]:
            raise AgentRefused(
                f"{self.holder} is {self.limit.value} and runs an agent whose tool "
                f"{tool.tool_def.name!r} is {effect.value}: declare the outer tool as what its agent "
                "does, or the inner one as what it does"
            )

    def _of(self, tool: ToolsetTool[Any]) -> Seen:
        return self._seen.get(id(schema_of(tool)), Seen())


@dataclass
class _GuardedToolset(WrapperToolset[Any]):
    guard: InnerRunGuard

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        for tool in tools.values():
            self.guard.refuse_unkept(tool)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        self.guard.refuse_excess(tool)
        step = self.guard.step
        if step is not None and self.guard.held(tool).effect is not ToolEffect.READ_ONLY:
            step.inner.wrote = True
        with entered(_inner(step, name, tool_args)) if step is not None else nullcontext():
            try:
                return await super().call_tool(name, tool_args, ctx, tool)
            except EffectNotApplied as said:
                # It speaks of this call, and not of the tool around its agent.
                raise ModelRetry(retry_payload(said.answer)["message"]) from said


def _inner(step: CurrentStep, tool: str, arguments: dict[str, Any]) -> CurrentStep:
    key = step.inner.key(step.idempotency_key, tool, arguments)
    return replace(step, idempotency_key=key)
