"""Execute one segment of a run in this process, and die where the test says.

    python -m tests.nrllm.worker UUID LOG [POINT KEY]

POINT is `before_ask`, `after_ask`, `before_stamp`, `after_stamp`, `in_body`, `before_record` or
`after_record` of the step with this key: there the process kills itself, as nothing else could (SIGKILL). Bodies and events are
written to LOG, a line each.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(uuid: str, log: str, point: str = "", key: str = "") -> None:
    django.setup()
    from agentruns.tasks import execute
    from tests.nrllm.long_agent import register

    register(Path(log), die_in=key if point == "in_body" else "")
    die_around("ask", "ask", point, key)
    die_around("mark_pending_effect", "stamp", point, key)
    die_around("record_step", "record", point, key)
    execute(uuid)


def die_around(method: str, what: str, point: str, key: str) -> None:
    from agentruns.models import AgentRun

    original: Callable[..., Any] = getattr(AgentRun, method)

    def wrapped(run: Any, claim: Any, call: Any, *args: Any, **options: Any) -> Any:
        if (point, key) == (f"before_{what}", call.key):
            die()
        result = original(run, claim, call, *args, **options)
        if (point, key) == (f"after_{what}", call.key):
            die()
        return result

    setattr(AgentRun, method, wrapped)


if __name__ == "__main__":
    main(*sys.argv[1:])
