from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.durable_exec import DynamicToolsetCallToolParams
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from .effects import ATTRIBUTE, STRICTNESS, Declaration
from .exceptions import AgentRefused
from .keys import jsonable
from .tools import function_of


def dynamic_toolsets_of(agent: AbstractAgent[Any, Any]) -> dict[str, AbstractToolset[Any]]:
    """The agent's dynamic toolsets by id."""
    found: dict[str, AbstractToolset[Any]] = {}

    def visit(leaf: AbstractToolset[Any]) -> None:
        if isinstance(leaf, DynamicToolset) and leaf.id is not None:
            found[leaf.id] = leaf

    for toolset in agent.toolsets:
        toolset.apply(visit)
    return found


async def refused_arguments(
    toolset: AbstractToolset[Any], params: DynamicToolsetCallToolParams, held: Declaration
) -> dict[str, Any] | None:
    """Validate the arguments of a dynamic toolset's tool; give back a refusal for the model, or None.

    Elsewhere that happens before the call. Here it would happen inside the write, where bad
    arguments can't be told from an error of the body.

    Raises:
        AgentRefused: the tool's decorator asks for more than the declaration that holds.
    """
    async with _tool_of(toolset, params) as tool:
        if tool is None:
            return None
        _refuse_unseen(params.name, function_of(tool), held)
        try:
            tool.args_validator.validate_python(
                params.tool_args, context=params.ctx.validation_context
            )
        except ValidationError as error:
            return _refusal(error)
    return None


async def refuse_unseen(
    toolset: AbstractToolset[Any], params: DynamicToolsetCallToolParams, held: Declaration
) -> None:
    """Look at the function behind a dynamic toolset's tool before it is called as a read.

    Raises:
        AgentRefused: its decorator asks for more than the declaration that holds.
    """
    async with _tool_of(toolset, params) as tool:
        if tool is not None:
            _refuse_unseen(params.name, function_of(tool), held)


@asynccontextmanager
async def _tool_of(
    toolset: AbstractToolset[Any], params: DynamicToolsetCallToolParams
) -> AsyncIterator[ToolsetTool[Any] | None]:
    if params.tool_def is None:
        yield None
        return
    of_run = await toolset.for_run(params.ctx)
    async with of_run:
        of_step = await of_run.for_run_step(params.ctx)
        yield await of_step.get_tool_for_tool_def(params.tool_def, params.ctx)


def _refuse_unseen(name: str, function: Callable[..., Any] | None, held: Declaration) -> None:
    """Refuse a decorator that was meant to hold, but that only the toolset's own process can see."""
    said: Declaration | None = getattr(function, ATTRIBUTE, None)
    if said is None:
        return
    flags = {
        said.effect.value: STRICTNESS[said.effect] > STRICTNESS[held.effect],
        "needs_approval": said.needs_approval and not held.needs_approval,
        "once_per_run": said.once_per_run and not held.once_per_run,
        "verify": said.verify is not None and held.verify is None,
    }
    if unseen := [flag for flag, missing in flags.items() if missing]:
        raise AgentRefused(
            f"the tool {name!r} of a dynamic toolset declares {', '.join(unseen)} by its decorator, "
            "which can't be seen before it is called. Declare the tool in "
            f"register_agent(effects={{{name!r}: Declaration(...)}})"
        )


def _refusal(error: ValidationError) -> dict[str, Any]:
    details = [
        {
            "type": detail["type"],
            "loc": list(detail["loc"]),
            "msg": detail["msg"],
            "input": jsonable(detail.get("input")),
        }
        for detail in error.errors(include_url=False, include_context=False)
    ]
    return {"kind": "validation_error", "title": error.title, "errors": details}
