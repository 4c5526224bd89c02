from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import ToolEffect

from .effects import RESOLVED_KEY, Resolved, needs_approval
from .tools import note


class WriteOrdering(AbstractCapability[Any]):
    """Makes every write wait until it is alone, and writes each tool's declaration on its definition.

    Outermost, so that it sees the name that the model sees, and the metadata that every other
    capability has left.
    """

    def __init__(self, resolve: Callable[[ToolsetTool[Any]], Resolved]) -> None:
        self._resolve = resolve

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _OrderedToolset(toolset, self._resolve)


@dataclass
class _OrderedToolset(WrapperToolset[Any]):
    resolve: Callable[[ToolsetTool[Any]], Resolved]

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        return {name: self._ordered(tool) for name, tool in tools.items()}

    def _ordered(self, tool: ToolsetTool[Any]) -> ToolsetTool[Any]:
        resolved = self.resolve(tool)
        definition = tool.tool_def
        writes = resolved.declaration.effect is not ToolEffect.READ_ONLY
        kind = definition.kind
        if kind == "function" and needs_approval(kind, resolved.declaration):
            kind = "unapproved"
        return replace(
            tool,
            tool_def=replace(
                definition,
                kind=kind,
                sequential=definition.sequential or writes,
                metadata={
                    **(definition.metadata or {}),
                    RESOLVED_KEY: note(definition.name, resolved),
                },
            ),
        )
