from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from django.db import connections

from agentruns.stopiteration import without_stop_iteration

READ_THREADS = 8
LOOK_AT_THE_LOOP_SECONDS = 1.0


class OwnThread(Executor):
    """Runs each function in a thread of its own, so that a blocked write holds up nothing else."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []

    async def ended(self) -> None:
        """Wait until no function is at work, also if cancelled meanwhile: nobody may go on before."""
        interruption: asyncio.CancelledError | None = None
        while busy := [asyncio.wrap_future(one) for one in self._futures if not one.done()]:
            try:
                await asyncio.wait(busy)
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._futures.append(future)
        work = _with_connections_closed(fn)
        target = _settling(future, work, args, kwargs)
        threading.Thread(target=target, name="nrllm-write", daemon=True).start()
        return future


class ReadPool(ThreadPoolExecutor):
    """A bounded pool for synchronous reads; each call closes the connections that it opened."""

    def __init__(self) -> None:
        super().__init__(max_workers=READ_THREADS, thread_name_prefix="nrllm-read")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        work = without_stop_iteration(_with_connections_closed(fn))
        return super().submit(work, *args, **kwargs)


class CallingThread(Executor):
    """Hands functions to the thread that serves it; `served` once that has run one."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.served = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put(_settling(future, fn, args, kwargs))
        return future

    def serve(self, loop: asyncio.AbstractEventLoop, done: Future[Any]) -> None:
        done.add_done_callback(lambda _: self._work.put(None))
        while not done.done():
            try:
                work = self._work.get(timeout=LOOK_AT_THE_LOOP_SECONDS)
            except queue.Empty:
                # An interrupted loop may have been closed before it ever saw the task.
                if loop.is_closed():
                    raise RuntimeError("the event loop was closed under a transaction") from None
                continue
            if work is not None:
                self.served = True
                work()


def run_from_this_thread(
    loop: asyncio.AbstractEventLoop,
    context: contextvars.Context,
    coroutine: Callable[[CallingThread], Coroutine[Any, Any, Any]],
) -> Any:
    """Run a coroutine on `loop`, and what it gives to its executor on the calling thread.

    So the synchronous function inside an asynchronous tool call runs where the transaction is
    open, and sees no running event loop. The calling thread must not be the loop's.
    """
    executor = CallingThread()
    done: Future[Any] = Future()

    def start() -> None:
        task = loop.create_task(coroutine(executor), context=context)
        task.add_done_callback(lambda ended: _copy(ended, done))

    loop.call_soon_threadsafe(start)
    executor.serve(loop, done)
    return done.result()


def _copy(ended: asyncio.Task[Any], done: Future[Any]) -> None:
    if ended.cancelled():
        done.set_exception(asyncio.CancelledError())
    elif (error := ended.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(ended.result())


def _settling(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], None]:
    fn = without_stop_iteration(fn)

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    return work


def _with_connections_closed(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            connections.close_all()

    return call
