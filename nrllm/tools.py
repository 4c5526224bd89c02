from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import ToolEffect

from .effects import RESOLVED_KEY, Declaration, Resolved, Source, ToolFacts


def function_of(tool: ToolsetTool[Any] | None) -> Callable[..., Any] | None:
    """The Python function behind a tool, if it is a function tool and can be seen from here."""
    return getattr(schema_of(tool), "function", None)


def schema_of(tool: ToolsetTool[Any] | None) -> Any:
    """The schema of the function behind a tool: each tool has one of its own."""
    while (source := getattr(tool, "source_tool", None)) is not None:
        tool = source
    return getattr(getattr(tool, "call_func", None), "__self__", None)


def facts_of(
    tool: ToolsetTool[Any],
    beneath: tuple[Mapping[str, Any], ...] = (),
    *,
    annotations_trusted: bool = False,
) -> ToolFacts:
    """What the outermost toolset shows of a tool, and what it wrote over (see catalog.py)."""
    return ToolFacts(
        name=tool.tool_def.name,
        metadata=tool.tool_def.metadata,
        function=function_of(tool),
        annotations_trusted=annotations_trusted,
        beneath=beneath,
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


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or one that it wraps, is asynchronous.

    What Pydantic AI runs is the outermost: it decides there, as here, whether a thread is needed.
    """
    return any(_awaits(one) for one in _layers(function))


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "func", None) or getattr(function, "__wrapped__", None)


def _awaits(one: Any) -> bool:
    return inspect.iscoroutinefunction(one) or inspect.iscoroutinefunction(
        getattr(one, "__call__", None)  # noqa: B004
    )
