"""Points around the stamp and the record at which a test may find a worker, and kill it.

The product has no hook for this: its two methods are wrapped, in workers under test only. Each
point is `POINT:STEP`, such as `after_stamp:write`; nobody waits at a point that is not armed.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from agentruns.models import AgentRun, StepCall

from .bodies import recorder


def hold(point: str, call: StepCall) -> None:
    witness = recorder()
    if witness is not None:
        witness.hold(f"{point}:{call.name}")


def install() -> None:
    wrap("mark_pending_effect", "stamp")
    wrap("record_step", "record")


def wrap(method: str, what: str) -> None:
    original = getattr(AgentRun, method)

    @wraps(original)
    def held(run: AgentRun, claim: Any, call: StepCall, *args: Any, **options: Any) -> Any:
        hold(f"before_{what}", call)
        result = original(run, claim, call, *args, **options)
        hold(f"after_{what}", call)
        return result

    setattr(AgentRun, method, held)
