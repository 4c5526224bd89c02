"""The agents of the benchmarks, found by autodiscovery in each of their processes."""

from __future__ import annotations

import time

from agentruns.enums import ToolEffect
from agentruns.registry import register
from agentruns.segment import Segment

from .arrivals import report_arrival

RESULT = {"message_id": "0123456789", "accepted": True}


@register("arrives")
def arrives(segment: Segment) -> None:
    """Say when its body starts, and end."""
    report_arrival()


@register("three steps")
def three_steps(segment: Segment) -> None:
    """A read, a write and a read, each of which takes as many seconds as the request says."""

    def body(key: str) -> object:
        time.sleep(segment.request)
        return RESULT

    segment.step("look up", body, effect=ToolEffect.READ_ONLY)
    segment.step("send", body, arguments={"to": "customer@example.org"})
    segment.step("look again", body, effect=ToolEffect.READ_ONLY)
