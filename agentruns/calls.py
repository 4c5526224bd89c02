"""How a segment waits: blocking, for plain functions, or on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from .clock import clock
from .sqlthread import SqlThread
from .stopiteration import without_stop_iteration

T = TypeVar("T")

# How long a replay waits for concurrent steps to ask for their records before it calls the journal
# a misfit: seconds, and turns of the loop, of which a busy machine gives few in a second.
SIBLING_SECONDS = 0.5
SIBLING_TURNS = 100


class Calls(Protocol):
    """The two things a step waits for: a statement on the SQL thread, and a body."""

    async def sql(self, function: Callable[[], T]) -> T:
        """Run on the SQL thread. An interruption is raised only after the statement has ended."""

    async def body(self, body: Callable[[str], Any], key: str) -> Any: ...

    async def siblings(self, settled: Callable[[], bool], progress: Callable[[], object]) -> None:
        """Give concurrent steps the time to ask for their records."""

    async def quiet(self, settled: Callable[[], bool]) -> None:
        """Wait until nothing else of the segment goes on."""

    def one_write(self) -> Any:
        """An async context manager: one write of the segment at a time."""


class BlockingCalls:
    """For `Segment.step`: everything ends before it returns, so that no coroutine ever waits."""

    def __init__(self, thread: SqlThread) -> None:
        self._thread = thread
        self._write = threading.Lock()

    async def sql(self, function: Callable[[], T]) -> T:
        return result_after_interruptions(self._thread.submit(function))

    async def body(self, body: Callable[[str], Any], key: str) -> Any:
        value = body(key)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError("the body of a blocking step returned an awaitable: use astep()")
        return value

    async def siblings(self, settled: Callable[[], bool], progress: Callable[[], object]) -> None:
        return None

    async def quiet(self, settled: Callable[[], bool]) -> None:
        return None

    @asynccontextmanager
    async def one_write(self) -> AsyncIterator[None]:
        with self._write:
            yield


class LoopCalls:
    """For `Segment.astep`."""

    def __init__(self, thread: SqlThread) -> None:
        self._thread = thread
        self._write = asyncio.Lock()

    async def sql(self, function: Callable[[], T]) -> T:
        future = asyncio.wrap_future(self._thread.submit(function))
        interruption: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            future.exception()
            raise interruption
        return future.result()

    async def body(self, body: Callable[[str], Any], key: str) -> Any:
        value = body(key)
        return await value if inspect.isawaitable(value) else value

    async def siblings(self, settled: Callable[[], bool], progress: Callable[[], object]) -> None:
        seen, since, turns = progress(), clock(), 0
        while not settled() and (clock() - since < SIBLING_SECONDS or turns < SIBLING_TURNS):
            await asyncio.sleep(0.002)
            turns += 1
            if progress() != seen:
                seen, since, turns = progress(), clock(), 0

    async def quiet(self, settled: Callable[[], bool]) -> None:
        # One more turn of the loop, in which siblings that were about to ask do so.
        await asyncio.sleep(0)
        while not settled():  # noqa: ASYNC110  (counters of other tasks, which send no event)
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def one_write(self) -> AsyncIterator[None]:
        async with self._write:
            yield


def result_after_interruptions(future: Future[T]) -> T:
    """Wait for the result even if a signal handler raises meanwhile; raise that afterwards."""
    interruption: BaseException | None = None
    while not future.done():
        try:
            future.exception()
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
    return future.result()


def drive(coroutine: Any) -> Any:
    """Run a coroutine whose calls all block: it ends without ever having waited."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("a blocking step waited on an event loop")


class CountingExecutor(ThreadPoolExecutor):
    """Threads for bodies, which know whether any of them is still at work."""

    def __init__(self, max_workers: int, name: str) -> None:
        super().__init__(max_workers=max_workers, thread_name_prefix=name)
        self._futures: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(without_stop_iteration(fn), *args, **kwargs)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    @property
    def busy(self) -> bool:
        return any(not future.done() for future in tuple(self._futures))

    async def quiet(self, seconds: float) -> None:
        """Wait until no thread is at work, for this long at most."""
        at_work = [asyncio.wrap_future(future) for future in tuple(self._futures)]
        if at_work:
            await asyncio.wait(at_work, timeout=seconds)
