from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import transaction

from . import hotrun, registry, slots
from .calls import CountingExecutor
from .clock import clock
from .conf import conf
from .dispatch import wake_after_commit
from .enums import FailureClass, RunMode, StepOutcome
from .exceptions import CancelRequested, GivenBack, LeaseLost, Parked
from .failures import Failure, classify
from .fields import Payload
from .interrupts import termination_asks
from .raised import cause_of, class_name, is_a
from .redaction import told
from .segment import Segment
from .sqlthread import on_new_connections
from .telemetry import span
from .tracebacks import log_error
from .verdict import Action, Verdict

if TYPE_CHECKING:
    from .guard import Claim
    from .models import AgentRun

logger = logging.getLogger(__name__)

# How many synchronous bodies of one segment run at a time.
BODY_THREADS = 8
# What ends a segment without anything having failed.
NO_FAILURES = (Parked, LeaseLost, GivenBack, CancelRequested)


@dataclass(frozen=True)
class SegmentEnd:
    """What ended a segment: nothing (it completed), or an error."""

    error: BaseException | None = None


class StillRunning(BaseException):
    """Something of the segment could not be ended: its run is left to the reaper."""


def owner_name(kind: str) -> str:
    """The name of a segment's owner: `kind:host:pid:random` (ADR-141)."""
    return f"{kind}:{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"


def execute_claimed(run: AgentRun, claim: Claim) -> SegmentEnd:
    """Execute one segment of a claimed run to its end: settled, parked, taken back or lost.

    Errors of the agent's function end up in the run's row, not here. What must end the process
    (SystemExit, KeyboardInterrupt) is raised again when the row is in order; if something of the
    segment can't be ended, the run is left to the reaper and SystemExit is raised.
    """
    segment = Segment(run, claim)
    asked_to_stop = partial(stop, segment)
    with (
        termination_asks(asked_to_stop) if is_background(run) else nullcontext(),
        span(
            f"agent run segment {run.agent}",
            parent=run.trace_context,
            run=str(run.uuid),
            agent=run.agent,
            epoch=claim.epoch,
            owner=claim.owner,
            correlation_id=run.correlation_id,
        ),
    ):
        try:
            return _execute(segment)
        finally:
            segment.close()
            slots.wake_next(run.agent)


def is_background(run: AgentRun) -> bool:
    return run.mode == RunMode.QUEUED


def stop(segment: Segment) -> None:
    """What SIGTERM asks of a segment; on the main thread, between any two instructions."""
    if segment.ask_to_stop():
        if segment.cancel_loop is not None:
            segment.cancel_loop()
        else:
            raise GivenBack("the process is to stop")


def _execute(segment: Segment) -> SegmentEnd:
    try:
        segment.open()
        try:
            output = _call(registry.get(segment.run.agent).execute, segment)
        finally:
            segment.heartbeat.settling = True
            _end_steps(segment)
        segment.refuse_unfinished()
        _complete(segment, output)
        return SegmentEnd()
    except StillRunning as error:
        segment.heartbeat.stop()
        logger.error("run %s is left to the reaper: %s", segment.run.uuid, error)
        raise SystemExit(1) from error
    except BaseException as raised:
        segment.heartbeat.settling = True
        ended_by = raised if segment.interrupt is None else segment.interrupt
        _settle(segment, ended_by)
        # What ends the process inside a write has become the cause of that write's interrupt.
        for ending in (raised, cause_of(raised)):
            if ending is not None and is_a(ending, SystemExit, KeyboardInterrupt):
                raise ending  # noqa: B904
        return SegmentEnd(ended_by)


def _end_steps(segment: Segment) -> None:
    """Wait, for a bounded time, for steps that the function left to threads of its own.

    Raises:
        StillRunning: one of them does not end.
    """
    deadline = clock() + conf.END_GRACE_SECONDS
    while segment.busy:
        if clock() >= deadline:
            raise StillRunning("a thread is still in a step")
        threading.Event().wait(0.02)


def _call(execute: Callable[[Segment], Any], segment: Segment) -> Any:
    if inspect.iscoroutinefunction(execute):
        return _call_on_loop(execute, segment)
    return execute(segment)


def _call_on_loop(execute: Callable[[Segment], Any], segment: Segment) -> Any:
    """Run an async function on a loop of its own, on this thread, so that an interrupt reaches it."""
    threads = CountingExecutor(BODY_THREADS, "agentruns-body")
    runner = asyncio.Runner()
    loop = runner.get_loop()
    loop.set_default_executor(threads)
    main = loop.create_task(_ended(execute, segment))
    segment.cancel_loop = partial(loop.call_soon_threadsafe, main.cancel)
    why = ""
    try:
        output, raised = loop.run_until_complete(main)
        if raised is not None:
            raise raised
        return output
    except BaseException as error:
        why = f"{class_name(error)}: {told(error)}"
        raise
    finally:
        segment.cancel_loop = None
        _end_everything(loop, threads, why)
        runner.close()


async def _ended(
    execute: Callable[[Segment], Any], segment: Segment
) -> tuple[Any, BaseException | None]:
    """What the function gave or raised: an error that its task ends with can hang the loop.

    asyncio asks it for its class, which it may refuse to tell.
    """
    try:
        return await execute(segment), None
    except BaseException as error:
        return None, error


def _end_everything(loop: asyncio.AbstractEventLoop, threads: CountingExecutor, why: str) -> None:
    """End every task of the loop and wait for its threads, for a bounded time.

    Raises:
        StillRunning: a task swallows its cancellation, or a thread is still in a body.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel(why)
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=conf.END_GRACE_SECONDS))
    for task in tasks:
        if not task.done():
            raise StillRunning(f"{task.get_name()} does not end")
        if not task.cancelled():
            task.exception()
    if threads.busy:
        loop.run_until_complete(threads.quiet(conf.END_GRACE_SECONDS))
    if threads.busy:
        raise StillRunning("a thread is still in a body")


def _complete(segment: Segment, output: Any) -> None:
    payload = Payload.of(output)
    usage = None if segment.usage is None else Payload.of(segment.usage)
    _on_sql_thread(segment, lambda: hotrun.complete(segment.run, segment.claim, payload, usage))


def _settle(segment: Segment, error: BaseException) -> None:
    """Bring the row in order after a segment that did not complete. Never raises."""
    if is_a(error, Parked):
        return
    verdict = None
    try:
        if is_a(error, LeaseLost):
            raise error
        verdict = _on_sql_thread(segment, partial(_take_back, segment, error))
    except LeaseLost as lost:
        logger.warning("run %s was lost: %s", segment.run.uuid, told(lost))
        _keep_evidence(segment)
    except Exception as why:
        log_error(
            logger, logging.ERROR, "run %s is left to the reaper", segment.run.uuid, error=why
        )
    else:
        logger.info("run %s: %s", segment.run.uuid, verdict)
        if is_a(error, GivenBack) and verdict.action is Action.REQUEUE:
            wake_after_commit(segment.run.uuid)
    if not is_a(error, *NO_FAILURES):
        _log_failure(segment, error, verdict)


def _log_failure(segment: Segment, error: BaseException, verdict: Verdict | None) -> None:
    """Say once what ended a segment, with its traceback: the row has its class and text alone.

    `verdict` is what was made of the run; None where that is left to others.
    """
    dead = verdict is not None and verdict.action is Action.DEAD_LETTER
    log_error(
        logger,
        logging.ERROR if dead else logging.WARNING,
        "run %s of %s failed with %s (%s)",
        segment.run.uuid,
        segment.run.agent,
        class_name(error),
        verdict.reason or verdict.action.value if verdict else "left to others",
        error=error,
        extra={
            "run": str(segment.run.uuid),
            "epoch": segment.claim.epoch,
            "owner": segment.claim.owner,
        },
    )


def _take_back(segment: Segment, error: BaseException) -> Verdict:
    if is_a(error, GivenBack):
        return segment.run.give_back(segment.claim)
    attempt, ending = segment.unrecorded or (None, None)
    # Together, so that nobody gives a verdict between them without having seen the evidence.
    with transaction.atomic(using=conf.DATABASE):
        verdict = segment.run.recover(
            segment.claim, _failure(error), error, attempt, ending, segment.body_is_over
        )
        if attempt is not None and ending is not None and ending.outcome is not StepOutcome.RAISED:
            segment.run.add_late_evidence(segment.claim, attempt, ending)
    return verdict


def _failure(error: BaseException) -> Failure:
    try:
        return classify(error)
    # On the SQL thread, where no signal raises: whatever it is, it is the classifier's.
    except BaseException as why:
        log_error(logger, logging.ERROR, "a failure classifier failed", error=why)
        return Failure(FailureClass.UNKNOWN)


def _keep_evidence(segment: Segment) -> None:
    """Write down how a write ended that was started before the run was lost."""
    if segment.unrecorded is None:
        return
    step, ending = segment.unrecorded
    try:
        _on_sql_thread(
            segment,
            lambda: segment.run.add_late_evidence(segment.claim, step, ending),
        )
    except Exception as why:
        log_error(
            logger, logging.ERROR, "late evidence about step %s was lost", step.key, error=why
        )


def _on_sql_thread(segment: Segment, function: Callable[[], Any]) -> Any:
    def call() -> Any:
        return on_new_connections(lambda again: function(), conf.RECORD_RETRY_SECONDS)

    return segment.sql.submit(call).result()
