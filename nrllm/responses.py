from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from pydantic_ai import exceptions
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRequestTimeout

from .exceptions import ReplayedFailure
from .keys import jsonable

FAILURE = "nrllm_failure"
CATEGORIES = (
    exceptions.ModelContextWindowExceededError,
    exceptions.ModelAuthenticationError,
    exceptions.ModelNotFoundError,
    exceptions.ModelRequestRejectedError,
    exceptions.ModelOverloadedError,
    exceptions.ModelUnavailableError,
    exceptions.ModelServerError,
    exceptions.ModelQuotaExceededError,
    exceptions.ModelRateLimitError,
)


def with_distinct_call_ids(response: Any) -> Any:
    """Give every tool call of an encoded response an id of its own.

    Some servers number the calls of one response alike; an id names a call's step, so two calls
    would be taken for one.
    """
    if not isinstance(response, dict) or not isinstance(response.get("parts"), list):
        return response
    given = {str(part.get("tool_call_id")) for part in response["parts"] if _is_tool_call(part)}
    seen: Counter[str] = Counter()
    parts = [_with_distinct_id(part, seen, given) for part in response["parts"]]
    return {**response, "parts": parts}


def _is_tool_call(part: Any) -> bool:
    return isinstance(part, dict) and part.get("part_kind") == "tool-call"


def _with_distinct_id(part: Any, seen: Counter[str], given: set[str]) -> Any:
    if not _is_tool_call(part):
        return part
    call_id = str(part.get("tool_call_id"))
    seen[call_id] += 1
    if seen[call_id] == 1:
        return part
    while (distinct := f"{call_id}#{seen[call_id]}") in given:
        seen[call_id] += 1
    given.add(distinct)
    return {**part, "tool_call_id": distinct}


def failure_payload(error: Exception) -> dict[str, Any]:
    """Encode how a model request failed, so that a replay fails in the same way."""
    said = {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "model_name": getattr(error, "model_name", ""),
        "status_code": getattr(error, "status_code", None),
        "retry_after": getattr(error, "retry_after", None),
        "timeout": getattr(error, "timeout", None),
        "api": isinstance(error, ModelAPIError),
        "body": jsonable(getattr(error, "body", None)),
    }
    return {FAILURE: said}


def raise_recorded_failure(payload: Any) -> None:
    """Raise what `failure_payload` encoded, if it is that; a response passes."""
    if not isinstance(payload, dict) or FAILURE not in payload:
        return
    said = payload[FAILURE]
    if said["status_code"] is not None:
        raise _http_error(said)
    if said["timeout"] is not None:
        raise ModelRequestTimeout(said["model_name"], said["timeout"])
    if said["api"]:
        kind = getattr(exceptions, said["type"], ModelAPIError)
        raise kind(said["model_name"], said["message"])
    raise _replayed(said.get("module", ""), said["type"], said["message"])


def _replayed(module: str, name: str, message: str) -> ReplayedFailure:
    """An error that what handled the first one takes for the same: a fallback asks for its type.

    Only a type that this process has loaded; nothing is imported, or made, on a journal's word.
    """
    kind = getattr(sys.modules.get(module), name, None)
    said = f"{name}: {message}"
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return ReplayedFailure(said)
    try:
        alike: Any = type(f"Replayed{name}", (ReplayedFailure, kind), {})
        error: ReplayedFailure = alike.__new__(alike, said)
    except TypeError:
        return ReplayedFailure(said)
    error.args = (said,)
    return error


def _http_error(said: dict[str, Any]) -> ModelHTTPError:
    category = next((kind for kind in CATEGORIES if kind.__name__ == said["type"]), None)
    return ModelHTTPError.for_category(
        category,
        status_code=said["status_code"],
        model_name=said["model_name"],
        body=said["body"],
        retry_after=said["retry_after"],
    )
