from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def without_stop_iteration(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `StopIteration` that leaves `function` a `RuntimeError`, as PEP 479 does in generators.

    No asyncio future takes a `StopIteration`: who awaits a thread that raised one waits for ever.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("a function raised StopIteration") from error

    return call
