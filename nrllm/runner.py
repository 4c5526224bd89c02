from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentruns import registry

from .approvals import Approvals
from .backend import JournalBackend
from .catalog import Seen, seen_of
from .durability import RunDurability
from .effects import Resolved, effect_of
from .exceptions import ResultNotStorable
from .ordering import WriteOrdering
from .prechecks import dynamic_toolsets_of
from .refusals import refuse_agent, refuse_listed, timeouts_of
from .registration import DurableAgent, RunInfo
from .requests import read_request
from .steps import Planner
from .subagents import durable_run
from .threads import ReadPool
from .tools import facts_of, schema_of
from .turns import turn_of

if TYPE_CHECKING:
    from agentruns.segment import Segment


async def run_agent(durable: DurableAgent, segment: Segment) -> Any:
    """Execute an agent as one segment; give back its output as JSON.

    What is recorded is replayed; the rest is executed in steps of the segment.
    """
    agent = durable.build()
    # Tools may have been added since the agent was registered.
    refuse_agent(agent, durable.effects)
    request = read_request(segment.request)
    reads, usage = ReadPool(), RunUsage()
    try:
        planner = Planner(
            mapping=durable.effects,
            timeouts=timeouts_of(agent),
            trusted=durable.trusted_mcp_servers,
            keyed=segment.keyed,
        )
        approvals = Approvals(segment, planner)
        backend = JournalBackend(segment, planner, reads, dynamic_toolsets_of(agent), approvals)
        with durable_run():
            async with (
                turn_of(agent),
                _clients(agent, durable),
                _deps(durable, segment, reads) as deps,
            ):
                result = await agent.run(
                    request.prompt,
                    message_history=request.message_history,
                    deps=deps,
                    usage=usage,
                    usage_limits=durable.usage_limits,
                    capabilities=[
                        WriteOrdering(partial(_resolve, durable, seen_of(agent))),
                        approvals,
                        RunDurability(
                            segment,
                            backend,
                            models=durable.models,
                            event_stream_handler=durable.event_stream_handler,
                        ),
                    ],
                )
        if backend.fatal is not None:
            raise backend.fatal
        return _as_json(durable, result.output)
    finally:
        segment.usage = _usage_as_json(usage)
        reads.shutdown(wait=False, cancel_futures=True)


def _resolve(durable: DurableAgent, seen: Mapping[int, Seen], tool: ToolsetTool[Any]) -> Resolved:
    trusted = tool.tool_def.toolset_id in durable.trusted_mcp_servers
    beneath = seen.get(id(schema_of(tool)), Seen()).metadata
    resolved = effect_of(facts_of(tool, beneath, annotations_trusted=trusted), durable.effects)
    refuse_listed(tool.tool_def, resolved.declaration, registry.get(durable.name).verifiers)
    return resolved


@contextlib.asynccontextmanager
async def _clients(agent: AbstractAgent[Any, Any], durable: DurableAgent) -> AsyncGenerator[None]:
    """Close the models' clients on the event loop on which they were used: the segment's own."""
    models = [agent.model, *(durable.models or {}).values()]
    async with contextlib.AsyncExitStack() as stack:
        for model in models:
            if isinstance(model, Model):
                await stack.enter_async_context(model)
        yield


@contextlib.asynccontextmanager
async def _deps(durable: DurableAgent, segment: Segment, reads: ReadPool) -> AsyncGenerator[Any]:
    """Build the dependencies of this segment; a synchronous factory may use the ORM."""
    if durable.deps is None:
        yield None
        return
    made = await _call(durable.deps, _info(segment), reads)
    if isinstance(made, contextlib.AsyncContextDecorator):
        # What a function decorated with `asynccontextmanager` gives; deps of their own may be
        # context managers, too, and are left alone.
        async with cast("contextlib.AbstractAsyncContextManager[Any]", made) as deps:
            yield deps
    else:
        yield made


async def _call(factory: Any, info: RunInfo, reads: ReadPool) -> Any:
    if inspect.iscoroutinefunction(factory):
        return await factory(info)
    made = await asyncio.get_running_loop().run_in_executor(reads, factory, info)
    return await made if inspect.isawaitable(made) else made


def _info(segment: Segment) -> RunInfo:
    run = segment.run
    return RunInfo(
        uuid=run.uuid,
        agent=run.agent,
        agent_version=run.agent_version,
        requested_by=run.requested_by,
        correlation_id=run.correlation_id,
        request=segment.request,
    )


def _usage_as_json(usage: RunUsage) -> dict[str, Any]:
    """The whole run's usage: what is replayed counts, too."""
    return {
        "requests": usage.requests,
        "tool_calls": usage.tool_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "details": dict(usage.details),
    }


def _as_json(durable: DurableAgent, output: Any) -> Any:
    try:
        return to_jsonable_python(output, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        message = f"the output of {durable.name!r} can't be kept as JSON: {error}"
        raise ResultNotStorable(message) from error
