"""The two forms of what a worker does: what holds for one must hold for the other."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from agentruns import hotpath, hotrun
from agentruns.models import AgentRun
from agentruns.models.querysets import AgentRunManager, AgentRunQuerySet

PORTABLE: dict[str, Any] = {
    "mark_pending_effect": AgentRun.mark_pending_effect,
    "record_step": AgentRun.record_step,
    "renew": AgentRun.renew,
    "complete": AgentRun.complete,
}
STATEMENTS = {
    "mark_pending_effect": hotpath.stamp,
    "record_step": hotpath.record,
    "renew": hotpath.renew,
    "complete": hotrun.complete,
}
OF_ALL_RUNS = {"enqueue": hotrun.enqueue, "claim": hotrun.claim}


class PortableRun:
    """A run for the statements to fall back on: its methods are the portable ones."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        method = PORTABLE.get(name)
        return partial(method, self._run) if method else getattr(self._run, name)


@pytest.fixture(
    params=["portable", pytest.param("statements", marks=pytest.mark.postgres)],
)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a run's methods, and so every test that calls them, go through this form."""
    if request.param == "portable":
        monkeypatch.setattr(hotpath, "has_statements", lambda: False)
        return "portable"
    for name, statement in STATEMENTS.items():
        monkeypatch.setattr(AgentRun, name, through(statement))
    for name, statement in OF_ALL_RUNS.items():
        portable = getattr(AgentRunQuerySet, name)
        monkeypatch.setattr(AgentRunManager, name, through_once(statement, portable))
    return "statements"


def through(statement: Any) -> Any:
    def method(run: AgentRun, *args: Any, **options: Any) -> Any:
        return statement(PortableRun(run), *args, **options)

    return method


def through_once(statement: Any, portable: Any) -> Any:
    """The manager's method: the statement, which falls back on the portable form by the same name."""
    inside = threading.local()

    def method(manager: AgentRunManager, *args: Any, **options: Any) -> Any:
        if getattr(inside, "fallen_back", False):
            return portable(manager.get_queryset(), *args, **options)
        inside.fallen_back = True
        try:
            return statement(*args, **options)
        finally:
            inside.fallen_back = False

    return method
