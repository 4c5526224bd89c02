"""OpenTelemetry spans, where its API is installed. Never a payload: only names, ids and types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .raised import class_name

try:
    from opentelemetry import trace
    from opentelemetry.propagate import extract, inject
except ImportError:  # pragma: no cover - the API is an optional dependency
    INSTALLED = False
else:
    INSTALLED = True

TRACEPARENT = "traceparent"


@contextmanager
def span(name: str, *, parent: str = "", **attributes: str | int) -> Iterator[None]:
    """Run the block in a span; an error sets its status to the error's type.

    `parent` is a W3C traceparent, as `trace_context()` gave it in another process.
    """
    if not INSTALLED:
        yield
        return
    tracer = trace.get_tracer("agentruns")
    with tracer.start_as_current_span(
        name,
        context=extract({TRACEPARENT: parent}) if parent else None,
        attributes={f"agentrun.{key}": value for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield
        except BaseException as error:
            current.set_status(trace.StatusCode.ERROR, class_name(error))
            raise


def trace_context() -> str:
    """The current span as a W3C traceparent, for a row that another process reads; '' without one."""
    if not INSTALLED:
        return ""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get(TRACEPARENT, "")
