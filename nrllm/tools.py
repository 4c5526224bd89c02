from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import ToolEffect

from .effects import RESOLVED_KEY, Declaration, Resolved, Source, ToolFacts


def function_of(tool: ToolsetTool[Any] | None) -> Callable[..., Any] | None:
    """The Python function behind a tool, if it is a function tool and can be seen from here."""
    while (source := getattr(tool, "source_tool", None)) is not None:
        tool = source
    schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    return getattr(schema, "function", None)


def facts_of(tool: ToolsetTool[Any], *, annotations_trusted: bool = False) -> ToolFacts:
    """What the outermost toolset shows of a tool."""
    return ToolFacts(
        name=tool.tool_def.name,
        metadata=tool.tool_def.metadata,
        function=function_of(tool),
        annotations_trusted=annotations_trusted,
    )


def note(name: str, resolved: Resolved) -> dict[str, Any]:
    """What ordering.py writes on a tool, as JSON: the name that the model sees, and who said what."""
    said = [
        [
            source,
            one.effect.value,
            one.once_per_run,
            one.retry_means_not_applied,
            one.needs_approval,
        ]
        for source, one in resolved.sources
    ]
    return {"name": name, "said": said}


def noted(definition: ToolDefinition | None) -> tuple[str, tuple[Source, ...]] | None:
    """Read the note back."""
    written = ((definition.metadata if definition else None) or {}).get(RESOLVED_KEY)
    if not isinstance(written, dict):
        return None
    heard = tuple(
        (source, Declaration(ToolEffect(effect), *flags))
        for source, effect, *flags in written["said"]
    )
    return written["name"], heard


def is_async(tool: ToolsetTool[Any]) -> bool:
    function = function_of(tool)
    return function is None or inspect.iscoroutinefunction(inspect.unwrap(function))
