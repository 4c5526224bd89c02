from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset

from agentruns.exceptions import SegmentInterrupt

from .backend import JournalBackend
from .events import placed
from .exceptions import AgentRefused
from .refusals import refuse_resolved, refuse_unwrapped

if TYPE_CHECKING:
    from agentruns.segment import Segment


def refuse_unbindable(
    name: str, agent: AbstractAgent[Any, Any], models: Mapping[str, Model] | None
) -> None:
    """Have Pydantic AI refuse now what it would in each run: toolsets without an id, and the like.

    Raises:
        AgentRefused: with what it says.
    """
    nowhere: Any = SimpleNamespace(run=SimpleNamespace(agent=name))
    nothing: Any = None
    backend = JournalBackend(nowhere, nothing, nothing, {}, nothing)
    try:
        RunDurability(nowhere, backend, models=models).for_agent(agent)
    except UserError as error:
        raise AgentRefused(str(error)) from error


class RunDurability(BaseDurabilityCapability[Any]):
    """Makes one agent run durable: it belongs to one segment and is given to `agent.run()`."""

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="nrllm",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        # MCP servers are connected around the run, so that no connection fails inside a write.
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-always",
            "dynamic": "enter-never",
        },
        # A tool could opt out of its fence with one.
        tool_config_key=None,
        cancellation_error_types=(SegmentInterrupt,),
    )

    def __init__(
        self,
        segment: Segment,
        backend: JournalBackend,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[Any] | None = None,
    ) -> None:
        handler = event_stream_handler and placed(event_stream_handler, segment)
        super().__init__(models=models, event_stream_handler=handler, name=segment.run.agent)
        self._segment = segment
        self._backend = backend
        self._journaled: set[int] = set()

    @property
    def in_durable_context(self) -> bool:
        # The capability is given to one run only, which is the durable one.
        return True

    def get_durable_operation_backend(self) -> JournalBackend:
        return self._backend

    def get_default_run_id(self) -> str | None:
        return str(self._segment.run.uuid)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id)

    def _bind_to_agent(self, agent: AbstractAgent[Any, Any]) -> None:
        super()._bind_to_agent(agent)
        self._journaled = {id(wrapper.wrapped) for wrapper in self._toolsets_by_id.values()}

    async def before_run(self, ctx: RunContext[Any]) -> None:
        refuse_resolved(ctx.root_capability)
        await super().before_run(ctx)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        refuse_unwrapped(toolset, lambda leaf: id(leaf) in self._journaled)
        return super().get_wrapper_toolset(toolset)
