from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.durable_exec import DynamicToolsetCallToolParams
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset

from .keys import jsonable


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
    toolset: AbstractToolset[Any], params: DynamicToolsetCallToolParams
) -> dict[str, Any] | None:
    """Validate the arguments of a dynamic toolset's tool; give back a refusal for the model, or None.

    Elsewhere that happens before the call. Here it would happen inside the write, where bad
    arguments can't be told from an error of the body.
    """
    if params.tool_def is None:
        return None
    of_run = await toolset.for_run(params.ctx)
    async with of_run:
        of_step = await of_run.for_run_step(params.ctx)
        tool = await of_step.get_tool_for_tool_def(params.tool_def, params.ctx)
        try:
            tool.args_validator.validate_python(
                params.tool_args, context=params.ctx.validation_context
            )
        except ValidationError as error:
            return _refusal(error)
    return None


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
