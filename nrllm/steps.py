from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
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

from .arguments import Arguments, arguments_of, refuse_arguments
from .effects import (
    UNDECLARED,
    Declaration,
    Mapped,
    Source,
    ToolFacts,
    as_declaration,
    effect_of,
    needs_approval,
)
from .keys import StepKeys
from .refusals import refuse_native_tools, refuse_settings, refuse_write
from .requests import request_digest
from .tools import function_of, noted

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
        keyed: Callable[[str], str] = str,
    ) -> None:
        self._mapping = mapping
        self._timeouts = timeouts
        self._trusted = trusted
        self._keys = StepKeys(keyed)
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
        refuse_settings(params.model_settings, self._mapping)
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
        seen = noted(definition)
        name = seen[0] if seen is not None else params.name
        arguments = _arguments(params)
        if isinstance(operation_id, ToolsetValidateToolArgumentsId):
            key = self._validation_key(params.ctx, name)
            return PlannedStep(
                f"{name}: arguments",
                key,
                READ,
                arguments=arguments.stored,
                digest=arguments.digest,
            )
        facts = self._leaf_facts(operation_id, params, definition, name)
        declaration = self._held(facts, seen)
        declaration = self._checked(operation_id, params, name, declaration, definition)
        kind = definition.kind if definition is not None else "function"
        # Pydantic AI asks for the calls that the model makes, by their kind. Code may make one past
        # it, and a toolset around it may have made another definition.
        approved = params.ctx.tool_call_approved or needs_approval(kind, declaration)
        refuse_arguments(name, arguments, declaration, approved=approved)
        return PlannedStep(
            name=name,
            key=self._tool_key(params.ctx, name, declaration, arguments.known_by),
            declaration=declaration,
            kind=StepKind.TOOL,
            arguments=arguments.stored,
            digest=arguments.digest,
            is_tool_call=True,
            needs_approval=approved,
            precheck_key=self._precheck_key(params, declaration),
        )

    def approval(
        self, ctx: RunContext[Any], tool: ToolsetTool[Any], name: str, validated: Any
    ) -> PlannedStep:
        """Say as which step a call will be made that a person has to allow first.

        Raises:
            AgentRefused: what the person would be shown does not say what would be done.
        """
        definition = tool.tool_def
        seen = noted(definition)
        noted_name = seen[0] if seen is not None else name
        declaration = self._held(ToolFacts(noted_name, metadata=definition.metadata), seen)
        arguments = arguments_of(validated, raw_arguments(ctx), function_of(tool))
        refuse_arguments(noted_name, arguments, declaration, approved=True)
        return PlannedStep(
            name=noted_name,
            key=self._tool_key(ctx, noted_name, declaration, arguments.known_by),
            declaration=declaration,
            kind=StepKind.TOOL,
            arguments=arguments.stored,
        )

    def _held(self, facts: ToolFacts, seen: tuple[str, tuple[Source, ...]] | None) -> Declaration:
        """What holds for a call. The mapping speaks of the names that the model sees, and no others.

        A toolset's own name of a tool may be the model's name of another: where only that is known,
        the mapping can't declare the tool, but may make stricter what it declares itself, and have
        it ask a person.
        """
        if seen is not None:
            return effect_of(facts, self._mapping, seen[1]).declaration
        alone, both = effect_of(facts, {}), effect_of(facts, self._mapping).declaration
        if alone.declared:
            return both
        return replace(alone.declaration, needs_approval=both.needs_approval)

    def _validation_key(self, ctx: RunContext[Any], name: str) -> str:
        """The same each time that one call is validated: how often that is depends on who asks."""
        if not is_of_the_model(ctx):
            return self._keys.numbered("validate", ctx.run_step, _call_id(ctx), name)
        return self._keys.validation(
            ctx.run_step, str(ctx.tool_call_id), name, approved=ctx.tool_call_approved
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
        name: str,
    ) -> ToolFacts:
        """What only the toolset itself shows: the function, and which server the hints come from."""
        trusted = (
            isinstance(operation_id, ToolsetCallToolId)
            and operation_id.toolset_kind == "mcp"
            and operation_id.toolset_id in self._trusted
        )
        return ToolFacts(
            name,
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
        refuse_write(name, declaration.effect, timeout, kind, function_of(tool))
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
        arguments = arguments_of(_given(params))
        return PlannedStep(
            name=name,
            key=self._keys.numbered("operation", step, name),
            declaration=UNDECLARED if said is None else as_declaration(said),
            arguments=arguments.stored,
            digest=arguments.digest,
        )


def _given(params: Any) -> Any:
    """What tells one operation from another at the same place: all that it is given but the run."""
    if isinstance(params, CapabilityOperationParams):
        return params.arguments
    if not is_dataclass(params):
        return params
    given = {field.name: getattr(params, field.name) for field in fields(params)}
    return {name: one for name, one in given.items() if not isinstance(one, RunContext)}


def _definition(params: Any, tool: Any) -> ToolDefinition | None:
    if isinstance(tool, ToolsetTool):
        return tool.tool_def
    if isinstance(params, DynamicToolsetCallToolParams):
        return params.tool_def
    return params.tool.tool_def if params.tool is not None else None


def _arguments(params: ToolsetCallToolParams | DynamicToolsetCallToolParams) -> Arguments:
    tool = params.tool if isinstance(params, ToolsetCallToolParams) else None
    return arguments_of(params.tool_args, raw_arguments(params.ctx), function_of(tool))


def raw_arguments(context: RunContext[Any]) -> dict[str, Any] | None:
    """A call's arguments as the model gave them; None where code made the call."""
    calls = last_response(context).tool_calls
    call = next((call for call in calls if call.tool_call_id == context.tool_call_id), None)
    try:
        return None if call is None else call.args_as_dict()
    except ValueError:
        return None


def _call_id(context: RunContext[Any]) -> str | None:
    return context.tool_call_id


def is_of_the_model(context: RunContext[Any]) -> bool:
    """Whether the model made the call of this context in its last response."""
    calls = last_response(context).tool_calls
    return any(call.tool_call_id == context.tool_call_id for call in calls)


def last_response(context: RunContext[Any]) -> ModelResponse:
    """The model's last response; an empty one where there is none."""
    responses = (one for one in reversed(context.messages) if isinstance(one, ModelResponse))
    return next(responses, ModelResponse(parts=[]))
