"""The agents of the made-up shop; they are looked at, never executed."""

from __future__ import annotations

from typing import Any

from agentruns.registry import register


def nothing(segment: Any) -> None:
    return None


for name in ("billing", "research", "support"):
    register(name)(nothing)
