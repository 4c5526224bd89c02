from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL = 0.05
# What is waited for takes milliseconds; a process that is started on a busy machine, many seconds.
PATIENCE = 120.0


def wait_until(
    condition: Callable[[], T],
    timeout: float = PATIENCE,
    what: str | Callable[[], object] = "condition",
) -> T:
    """Ask until the answer is true, and return it.

    Raises:
        AssertionError: it was not true in `timeout` seconds; `what` says in its message what was
            waited for.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last = time.monotonic() > deadline  # whoever was paused asks once more
        answer = condition()
        if answer:
            return answer
        if is_last:
            waited_for = what() if callable(what) else what
            raise AssertionError(f"waited {timeout} s for: {waited_for}")
        time.sleep(INTERVAL)
