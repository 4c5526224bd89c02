"""Fixtures for an application's own tests: `pytest_plugins = ["agentruns.testing.pytest_plugin"]`.

Each imports what it needs when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

if TYPE_CHECKING:
    from agentruns.testing import Body, CrashReport, LeaseClock


@pytest.fixture
def agent_bodies() -> Iterator[list[Body]]:
    """The bodies of steps that this test's process has started; for `assert_at_most_once`."""
    from agentruns.testing import counted_bodies

    with counted_bodies() as bodies:
        yield bodies


@pytest.fixture
def lease_clock() -> Callable[[UUID | str], LeaseClock]:
    """`lease_clock(uuid)` moves that run's times, so that the test need not wait for them."""
    from agentruns.testing import LeaseClock

    return LeaseClock


@pytest.fixture
def crash_agent_run(request: pytest.FixtureRequest) -> Callable[..., CrashReport]:
    """Kill a worker at every boundary of a run of this agent: `crash_agent_run("name", request)`.

    The options are those of `CrashCase`, and `lanes`. It makes databases of its own, so the test must not ask for
    pytest-django's `db`, whose transaction no other process could see into.
    """
    from agentruns.testing import CrashCase
    from agentruns.testing.kit import crash_agent_run

    blocker = request.getfixturevalue("django_db_blocker")

    def crash(
        agent: str, request: Any = None, *, lanes: int | None = None, **options: Any
    ) -> CrashReport:
        with blocker.unblock():
            return crash_agent_run(CrashCase(agent, request, **options), lanes=lanes)

    return crash
