from __future__ import annotations

import json
from typing import Any

from agentruns.enums import FENCED_EFFECTS, ToolEffect
from agentruns.exceptions import EffectNotApplied
from agentruns.fields import storable

from .effects import Declaration
from .exceptions import AgentRefused, UnclearOutcome
from .keys import jsonable

# Pydantic AI hands a tool's control flow over as values: {"kind": ..., ...}. A kind that is not
# listed here is one that a later release added: it says nothing about what happened.
SAYS_IT_HAPPENED = frozenset({"tool_return", "tool_content_result", "tool_failed"})
ASKS_THE_MODEL_AGAIN = frozenset({"model_retry"})
SAYS_NOTHING_IN_A_TRANSACTION = frozenset({"model_retry", "validation_error", "tool_failed"})


def settled(payload: Any, declaration: Declaration, tool: str) -> Any:
    """Turn what a tool's body came back with into what its step means. Returns what is recorded.

    Raises:
        EffectNotApplied: nothing happened, for certain; carries what the model is told.
        UnclearOutcome: it is not known; in a write, the fence must stand.
    """
    kind = str(payload.get("kind"))
    if declaration.effect is ToolEffect.READ_ONLY:
        if kind == "call_deferred":
            raise AgentRefused(
                f"the tool {tool!r} raised CallDeferred: a durable run can't be given its result from "
                "outside. Ask a person (ask_person), or call what has the result"
            )
        return payload
    if declaration.effect is ToolEffect.TRANSACTIONAL_WRITE:
        return _of_transaction(payload, kind, tool)
    if declaration.effect in FENCED_EFFECTS and kind in SAYS_IT_HAPPENED:
        return payload
    if kind in ASKS_THE_MODEL_AGAIN and declaration.retry_means_not_applied:
        raise EffectNotApplied(payload)
    raise UnclearOutcome(tool, kind, str(payload.get("message") or payload.get("title") or ""))


def _of_transaction(payload: Any, kind: str, tool: str) -> Any:
    """An exception in a transaction rolls it back, so it says for certain that nothing happened."""
    if kind in SAYS_NOTHING_IN_A_TRANSACTION:
        raise EffectNotApplied(payload)
    if kind in SAYS_IT_HAPPENED:
        return payload
    raise UnclearOutcome(tool, kind, str(payload.get("message") or ""))


def retry_payload(answer: Any) -> dict[str, str]:
    """Turn the answer of a body's `EffectNotApplied` into what the model sees: try again."""
    if answer is None:
        answer = "Nothing was done."
    return {"kind": "model_retry", "message": answer if isinstance(answer, str) else _said(answer)}


def _said(answer: Any) -> str:
    """An answer as JSON; of one that has no such form, its text. Never raises: nothing was done."""
    try:
        return json.dumps(jsonable(answer))
    except Exception:
        return storable(answer)


def denied_payload(note: str) -> dict[str, str]:
    """What the model is told about a call that a person denied."""
    return {"kind": "tool_failed", "message": note or "The tool call was denied."}


def landed(result: Any) -> bool:
    """Whether a result that could not be encoded came from a body that says it acted."""
    return getattr(result, "kind", None) in SAYS_IT_HAPPENED
