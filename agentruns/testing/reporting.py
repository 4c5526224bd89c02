from __future__ import annotations

from typing import Any

from .client import RecorderClient

_recorder: RecorderClient | None = None
_facts: dict[str, Any] = {}


def report_effect(name: str, *, idempotency_key: str = "", **facts: Any) -> None:
    """Say that something happened in the world: for the stand-ins of a test's mailers and clients.

    In a worker of the crash kit it is written down in another process before this returns; anywhere
    else nothing happens. Effects of one name and `idempotency_key` count once, as at a destination
    that knows the key; without a key each counts.
    """
    if _recorder is not None:
        _recorder.effect(name, idempotency_key=idempotency_key, **facts, **_facts)


def report_to(recorder: RecorderClient, **facts: Any) -> None:
    """Have this process's reports go to this recorder, each with these facts."""
    global _recorder
    _recorder = recorder
    _facts.clear()
    _facts.update(facts)
