from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    CapabilityOperationParams,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    EventStreamHandlerParams,
    ModelCancelSuspendedResponseParams,
    ModelCompactMessagesParams,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsParams,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets.abstract import ToolsetTool

from agentruns.enums import StepKind, ToolEffect

from .effects import UNDECLARED, Declaration, Mapped, ToolFacts, as_declaration, effect_of
from .keys import StepKeys, jsonable
from .refusals import refuse_native_tools, refuse_write
from .requests import request_digest
from .tools import function_of, is_async, noted

READ = Declaration(ToolEffect.READ_ONLY)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """What a durable operation is as a step: name and key are replay-stable."""

    name: str
    key: str
    declaration: Declaration
    kind: StepKind = StepKind.CALL
    arguments: Any = None
    digest: str | None = None
    is_tool_call: bool = False
    needs_approval: bool = False
    # The key of the step that checks the arguments first, where nothing else has.
    precheck_key: str | None = None


class Planner:
    """Turns Pydantic AI's operations into steps. One for each segment: it numbers what repeats."""

    def __init__(
        self,
        *,
        mapping: Mapped,
        timeouts: Mapping[str, float],
        trusted: Collection[str] = (),
    ) -> None:
        self._mapping = mapping
        self._timeouts = timeouts
        self._trusted = trusted
        self._keys = StepKeys()
        self._not_applied: Counter[str] = Counter()

    def plan(self, operation_id: DurableOperationId, params: Any, tool: Any) -> PlannedStep:
        """Raise `AgentRefused` for what can't run behind the fence."""
        match params:
            case ModelRequestParams():
                return self._model(operation_id, params)
            case ModelCompactMessagesParams() | ModelCancelSuspendedResponseParams():
                return self._beside_the_model(operation_id, params)
            case EventStreamHandlerParams():
                return self._event(params)
            case ToolsetGetToolsParams():
                return self._discovery(operation_id, params)
            case ToolsetCallToolParams() | DynamicToolsetCallToolParams():
                return self._tool(operation_id, params, tool)
            case _:
                return self._unknown(operation_id, params)

    def _model(self, operation_id: DurableOperationId, params: ModelRequestParams) -> PlannedStep:
        refuse_native_tools(params.model_request_parameters.native_tools, self._mapping)
        name = operation_id.model_name if isinstance(operation_id, ModelRequestId) else "model"
        return PlannedStep(
            name=name,
            key=self._keys.numbered("model", params.run_context.run_step),
            declaration=READ,
            kind=StepKind.MODEL,
            digest=request_digest(params),
        )

    def _beside_the_model(self, operation_id: DurableOperationId, params: Any) -> PlannedStep:
        what = "compact" if isinstance(params, ModelCompactMessagesParams) else "cancel"
        step = params.run_context.run_step if params.run_context is not None else 0
        key = self._keys.numbered(f"model-{what}", step)
        return PlannedStep(name=f"model.{what}", key=key, declaration=READ, kind=StepKind.MODEL)

    def _event(self, params: EventStreamHandlerParams) -> PlannedStep:
        # Tools that run side by side end in another order on replay, so an event's place is the
        # call that it is about, not its turn.
        event = params.event
        kind = str(getattr(event, "event_kind", type(event).__name__))
        about = getattr(event, "tool_call_id", None) or "-"
        key = self._keys.numbered("event", params.run_context.run_step, kind, about)
        return PlannedStep(name=f"event {kind}", key=key, declaration=READ)

    def _discovery(
        self, operation_id: DurableOperationId, params: ToolsetGetToolsParams
    ) -> PlannedStep:
        what = "instructions" if isinstance(operation_id, ToolsetGetInstructionsId) else "tools"
        toolset = str(getattr(operation_id, "toolset_id", "?"))
        key = self._keys.numbered(what, params.ctx.run_step, toolset)
        return PlannedStep(name=f"{toolset}: {what}", key=key, declaration=READ)

    def _tool(
        self,
        operation_id: DurableOperationId,
        params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
        tool: Any,
    ) -> PlannedStep:
        definition = _definition(params, tool)
        name, heard = noted(definition) or (params.name, ())
        arguments = jsonable(params.tool_args)
        if isinstance(operation_id, ToolsetValidateToolArgumentsId):
            key = self._keys.numbered("validate", params.ctx.run_step, _call_id(params.ctx), name)
            return PlannedStep(f"{name}: arguments", key, READ, arguments=arguments)
        facts = self._leaf_facts(operation_id, params, definition)
        declaration = effect_of(facts, self._mapping, heard).declaration
        declaration = self._checked(operation_id, params, name, declaration, definition)
        return PlannedStep(
            name=name,
            key=self._tool_key(params.ctx, name, declaration, arguments),
            declaration=declaration,
            kind=StepKind.TOOL,
            arguments=arguments,
            is_tool_call=True,
            needs_approval=params.ctx.tool_call_approved
            or (definition is not None and definition.kind == "unapproved"),
            precheck_key=self._precheck_key(params, declaration),
        )

    def approval(
        self, ctx: RunContext[Any], definition: ToolDefinition, name: str, arguments: Any
    ) -> PlannedStep:
        """Say as which step a call will be made that a person has to allow first."""
        noted_name, heard = noted(definition) or (name, ())
        facts = ToolFacts(name, metadata=definition.metadata)
        declaration = effect_of(facts, self._mapping, heard).declaration
        return PlannedStep(
            name=noted_name,
            key=self._tool_key(ctx, noted_name, declaration, jsonable(arguments)),
            declaration=declaration,
            kind=StepKind.TOOL,
            arguments=jsonable(arguments),
        )

    def _precheck_key(
        self,
        params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
        declaration: Declaration,
    ) -> str | None:
        dynamic = isinstance(params, DynamicToolsetCallToolParams)
        if not dynamic or declaration.effect is ToolEffect.READ_ONLY:
            return None
        call_id = _call_id(params.ctx)
        return self._keys.numbered("arguments", params.ctx.run_step, call_id, params.name)

    def _leaf_facts(
        self,
        operation_id: DurableOperationId,
        params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
        definition: ToolDefinition | None,
    ) -> ToolFacts:
        """What only the toolset itself shows: the function, and which server the hints come from."""
        trusted = (
            isinstance(operation_id, ToolsetCallToolId)
            and operation_id.toolset_kind == "mcp"
            and operation_id.toolset_id in self._trusted
        )
        return ToolFacts(
            params.name,
            metadata=definition.metadata if definition is not None else None,
            function=function_of(
                params.tool if isinstance(params, ToolsetCallToolParams) else None
            ),
            annotations_trusted=trusted,
        )

    def _checked(
        self,
        operation_id: DurableOperationId,
        params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
        name: str,
        declaration: Declaration,
        definition: ToolDefinition | None,
    ) -> Declaration:
        kind = str(getattr(operation_id, "toolset_kind", "unknown"))
        timeout = definition.timeout if definition is not None else None
        if timeout is None and isinstance(operation_id, ToolsetCallToolId):
            timeout = self._timeouts.get(operation_id.toolset_id)
        tool = params.tool if isinstance(params, ToolsetCallToolParams) else None
        asynchronous = tool is None or is_async(tool)
        refuse_write(name, declaration.effect, timeout, kind, asynchronous=asynchronous)
        if kind == "function" or not declaration.retry_means_not_applied:
            return declaration
        # Elsewhere a ModelRetry also stands for a lost connection, or for a timeout.
        return replace(declaration, retry_means_not_applied=False)

    def not_applied(self, plan: PlannedStep) -> None:
        """Note that a call did nothing: a `once_per_run` tool may be called again."""
        self._not_applied[plan.key] += 1

    def _once_key(self, name: str, arguments: Any) -> str:
        occurrence = 1
        while self._not_applied[key := self._keys.once(name, arguments, occurrence)]:
            occurrence += 1
        return key

    def _tool_key(
        self,
        ctx: RunContext[Any],
        name: str,
        declaration: Declaration,
        arguments: Any,
    ) -> str:
        if declaration.once_per_run and declaration.effect is not ToolEffect.READ_ONLY:
            return self._once_key(name, arguments)
        if ctx.tool_call_id is not None and is_of_the_model(ctx):
            # A read may ask for its approval itself; its body then starts once more.
            again = ctx.tool_call_approved and declaration.effect is ToolEffect.READ_ONLY
            return self._keys.tool(ctx.run_step, ctx.tool_call_id, approved=again)
        # A call that code made, not the model: its id may be new on each replay.
        return self._keys.numbered("call", ctx.run_step, name)

    def _unknown(self, operation_id: DurableOperationId, params: Any) -> PlannedStep:
        """An operation of a capability, or one that a later release of Pydantic AI added."""
        if isinstance(operation_id, CapabilityOperationId):
            name = f"{operation_id.capability_id}.{operation_id.operation}"
        else:
            name = type(operation_id).__name__
        context = getattr(params, "run_context", None) or getattr(params, "ctx", None)
        step = context.run_step if isinstance(context, RunContext) else 0
        said = self._mapping.get(name)
        arguments = None
        if isinstance(params, CapabilityOperationParams):
            arguments = jsonable(params.arguments)
        return PlannedStep(
            name=name,
            key=self._keys.numbered("operation", step, name),
            declaration=UNDECLARED if said is None else as_declaration(said),
            arguments=arguments,
        )


def _definition(params: Any, tool: Any) -> ToolDefinition | None:
    if isinstance(tool, ToolsetTool):
        return tool.tool_def
    if isinstance(params, DynamicToolsetCallToolParams):
        return params.tool_def
    return params.tool.tool_def if params.tool is not None else None


def _call_id(context: RunContext[Any]) -> str | None:
    return context.tool_call_id


def is_of_the_model(context: RunContext[Any]) -> bool:
    """Whether the model made the call of this context in its last response."""
    for message in reversed(context.messages):
        if isinstance(message, ModelResponse):
            return any(call.tool_call_id == context.tool_call_id for call in message.tool_calls)
    return False
