"""System checks of the limits on an agent's runs at a time."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, register

from . import registry
from .checks import error


@register("agentruns")
def check_limits(**_: Any) -> list[CheckMessage]:
    """Judge what agents were registered with, once all are."""
    return [
        error(
            "E014",
            f"Agent {agent.name!r} is registered with max_running={agent.max_running!r}: no run of it "
            "could be claimed.",
            "Give a whole number from 1 upwards, or leave it out for any number of runs at a time.",
        )
        for agent in registry.agents()
        if agent.max_running is not None and not is_limit(agent.max_running)
    ]


def is_limit(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
