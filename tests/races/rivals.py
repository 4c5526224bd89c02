"""Two connections that want the same row: one holds it, the other is seen to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction

from agentruns.models import AgentRun
from agentruns.reaper import sweep
from tests.harness.database import own_backend, waits_for_a_lock
from tests.servers.waiting import wait_until

# How long anybody waits for another one before a test gives up.
PATIENCE = 60


class Rival(threading.Thread):
    """Calls a function on a connection of its own; `outcome()` gives or raises what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self.backend: int | None = None

    def run(self) -> None:
        try:
            self.backend = own_backend()
            self._result = self._function()
        except BaseException as error:
            self._error = error
        finally:
            connection.close()

    def outcome(self) -> Any:
        self.join(timeout=PATIENCE)
        assert not self.is_alive(), "the rival still waits"
        if self._error is not None:
            raise self._error
        return self._result

    def failed_with(self, kind: type[BaseException]) -> bool:
        assert not self.is_alive(), "the rival still waits"
        return isinstance(self._error, kind)

    def waits_for_a_lock(self) -> bool:
        return waits_for_a_lock(self.backend)


@contextmanager
def holding(function: Callable[[], Any]) -> Iterator[None]:
    """Have another connection do this in a transaction that commits when the block ends."""
    done, release = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            function()
            done.set()
            assert release.wait(PATIENCE)

    holder = Rival(hold)
    holder.start()
    wait_until(
        lambda: done.is_set() or not holder.is_alive(), PATIENCE, "the first to hold the row"
    )
    try:
        yield
    finally:
        release.set()
        holder.outcome()


def second_comes_while(first: Callable[[], Any], second: Callable[[], Any]) -> Rival:
    """Do `first`, and before it commits `second`, which is seen to wait for it."""
    rival = Rival(second)
    with holding(first):
        rival.start()
        wait_until(rival.waits_for_a_lock, what="the second to wait for the first")
    rival.join(timeout=PATIENCE)
    return rival


def together(*functions: Callable[[], Any]) -> list[Rival]:
    """Call all of them at the same moment, each on its own connection."""
    barrier = threading.Barrier(len(functions))

    def start_together(function: Callable[[], Any]) -> Callable[[], Any]:
        def started() -> Any:
            barrier.wait(PATIENCE)
            return function()

        return started

    rivals = [Rival(start_together(function)) for function in functions]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(timeout=PATIENCE)
    return rivals


def reap_in_transaction(run: AgentRun) -> Callable[[], None]:
    """What a reaper does to one run, for a transaction that is held open."""

    def reap() -> None:
        for stale in AgentRun.objects.lock_stale([run.pk]):
            stale.reap()

    return reap


def reaped_by_sweep() -> list[str]:
    return [run.uuid for run in sweep().runs]
