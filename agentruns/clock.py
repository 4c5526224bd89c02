from __future__ import annotations

import time

# Where there is one, the clock that also counts the time in which the machine was suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on this machine's own clock, which nobody sets: for durations only."""
    return time.clock_gettime(_CLOCK)
