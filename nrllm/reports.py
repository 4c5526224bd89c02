"""What a person or a destination reports about a tool call: that it happened, and with which result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_ai.durable_exec import CallToolResult
from pydantic_ai.messages import ToolReturn

from agentruns.enums import StepKind
from agentruns.exceptions import PayloadError
from agentruns.registry import Verifier

from .catalog import LATER, catalog
from .effects import as_declaration
from .keys import jsonable
from .registration import DurableAgent

_recorded: TypeAdapter[Any] = TypeAdapter(CallToolResult)


def verifiers_of(durable: DurableAgent) -> Mapping[str, Verifier]:
    """Who can be asked about an agent's writes, by the tool's name."""
    # Tools that only a run learns of are declared by the mapping alone.
    said = {name: as_declaration(one) for name, one in durable.effects.items()}
    said |= {entry.name: entry.resolved.declaration for entry in catalog(durable)}
    return {
        name: Verifier(declared.verify, declared.verify_is_final)
        for name, declared in said.items()
        if name != LATER and declared.verify is not None
    }


def encode_result(durable: DurableAgent, step: str, kind: StepKind, value: Any) -> Any:
    """Turn the plain result of a tool into what the journal has when its body returned it.

    Raises:
        PayloadError: the tool's function can't have returned this.
    """
    if kind is not StepKind.TOOL:
        return value
    result = _fitting(durable, step, value)
    # See `wrap_tool_call_result` of Pydantic AI: a result that looks like its own wrapping.
    taken = isinstance(result, dict) and result.get("kind") == "tool-return"
    payload = {"kind": "tool_content_result" if taken else "tool_return", "result": result}
    try:
        return _recorded.dump_python(_recorded.validate_python(payload), mode="json")
    except ValidationError as error:
        raise PayloadError(_why_not(step, error)) from error


def result_schema(durable: DurableAgent, step: str, kind: StepKind) -> dict[str, Any] | None:
    """The JSON schema of what a tool's function returns, by its annotation; None without one."""
    adapter = _adapter(durable, step) if kind is StepKind.TOOL else None
    if adapter is None:
        return None
    try:
        return adapter.json_schema()
    except PydanticUserError:
        return {
            "description": "a type that has no JSON schema; the result is held to it all the same"
        }


def _fitting(durable: DurableAgent, step: str, value: Any) -> Any:
    """Hold the value to the return type of the tool's function, where there is one."""
    adapter = _adapter(durable, step)
    if adapter is None:
        return value
    try:
        return jsonable(adapter.validate_python(value))
    except ValidationError as error:
        raise PayloadError(_why_not(step, error)) from error


def _why_not(step: str, error: ValidationError) -> str:
    """Say what does not fit, and where; never the value, since this comes into histories and logs."""
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    said = [
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else one["msg"]
        for one in wrong
    ]
    return f"{step} can't have returned this: {'; '.join(said)}"


def _adapter(durable: DurableAgent, step: str) -> TypeAdapter[Any] | None:
    function = next((e.facts.function for e in catalog(durable) if e.name == step), None)
    return _return_type(function)


def _return_type(function: Callable[..., Any] | None) -> TypeAdapter[Any] | None:
    """What the annotation says that is returned; None where it says nothing that can be held to."""
    if function is None:
        return None
    try:
        said = get_type_hints(inspect.unwrap(function), include_extras=True).get("return", Any)
        if said is Any or said is ToolReturn or getattr(said, "__origin__", None) is ToolReturn:
            return None
        return TypeAdapter(type(None) if said is None else said)
    except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUserError):
        return None
