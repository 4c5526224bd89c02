"""Points around the stamp and the record at which a test may find a worker, and kill it.

The product has no hook for this: its two methods are wrapped, in workers under test only. Each
point is `POINT:STEP`, such as `after_stamp:write`; nobody waits at a point that is not armed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import Any

from django.db import OperationalError, connection

from agentruns.models import AgentRun, StepCall

from .bodies import recorder


def hold(point: str, call: StepCall) -> None:
    witness = recorder()
    if witness is not None and witness.hold(f"{point}:{call.name}") == "lose_connection":
        lose_connection()


def lose_connection() -> None:
    """Have the server end this thread's connection, and raise what the client makes of that."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def install() -> None:
    wrap("mark_pending_effect", "stamp")
    wrap("record_step", "record")


def wrap(method: str, what: str) -> None:
    original = getattr(AgentRun, method)

    @wraps(original)
    def held(run: AgentRun, claim: Any, call: StepCall, *args: Any, **options: Any) -> Any:
        with suppress(OperationalError):  # the statements that follow find out for themselves
            hold(f"before_{what}", call)
        result = original(run, claim, call, *args, **options)
        hold(f"after_{what}", call)
        return result

    setattr(AgentRun, method, held)
