"""Kill a worker at every boundary of an agent's run, and report what became of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from .. import registry
from ..enums import RunStatus, TerminationReason
from ..exceptions import AgentRunError
from .databases import lanes_allowed, scratch_databases
from .exercise import Boundary, CrashCase, Exercise, Trace
from .lanes import Lane, side_by_side
from .report import Cell, CrashReport
from .workers import refuse_open_transaction

Progress = Callable[[str], object]


class NothingToCrash(AgentRunError):
    """The undisturbed run did not complete, so that there is nothing to compare with."""


def crash_agent_run(
    case: CrashCase, *, lanes: int | None = None, progress: Progress = lambda line: None
) -> CrashReport:
    """Run an agent undisturbed, then once for each boundary that it came to, with a SIGKILL there.

    Every run happens on databases of the kit's own, which are dropped at the end, in `lanes`
    processes side by side. Tools really run, a few dozen times: see `CrashCase.setup`.

    Raises:
        UnknownAgent: no agent of this name is registered.
        NothingToCrash: undisturbed, the run does not complete.
        RuntimeError: a transaction is open here.
    """
    registry.get(case.agent)
    refuse_open_transaction()
    lanes = lanes_allowed(lanes or min(4, os.cpu_count() or 1))
    progress("making databases for the kit")
    with scratch_databases(lanes):
        undisturbed = _traces(case, 1, [None])[0]
        refuse_what_does_not_complete(undisturbed)
        boundaries = undisturbed.boundaries
        report = CrashReport(case.agent, boundaries, undisturbed)
        progress(f"{len(boundaries)} boundaries, in {lanes} processes")
        order = {boundary: number for number, boundary in enumerate(boundaries)}

        def done(trace: Trace) -> None:
            cell = judged(trace, undisturbed)
            report.cells.append(cell)
            progress(f"{len(report.cells)}/{len(boundaries)} {cell}")

        side_by_side(lanes, boundaries, partial(_exercise, case), done)
        report.cells.sort(key=lambda cell: order[cell.boundary])
    return report


def _exercise(case: CrashCase, lane: Lane, boundary: Boundary | None) -> Trace:
    return Exercise(case, lane, boundary).carry_through()


def _traces(case: CrashCase, lanes: int, cells: list[Boundary | None]) -> list[Trace]:
    traces: list[Trace] = []
    side_by_side(lanes, cells, partial(_exercise, case), traces.append)
    return traces


def refuse_what_does_not_complete(trace: Trace) -> None:
    state = trace.state
    if trace.stuck or state is None or state.status is not RunStatus.COMPLETED:
        how = trace.stuck or (state and f"{state.status} {state.reason} {state.error}")
        raise NothingToCrash(f"undisturbed, the run does not complete: {how}\n{trace.said}".strip())


def judged(trace: Trace, undisturbed: Trace) -> Cell:
    """Say what became of a run whose worker was killed, and what of it breaks a promise."""
    assert trace.boundary is not None
    assert trace.state is not None
    state = trace.state
    broken = list(trace.broken)
    completed = state.status is RunStatus.COMPLETED
    if trace.stuck:
        broken.append(trace.stuck)
    elif not state.settled:
        broken.append(f"the run was left {state.status}")
    if not trace.struck:
        broken.append("the boundary was not reached again: the agent does something else each time")
    broken += [f"{key} was recorded, and its body was started again" for key in trace.repeated]
    broken += other_effects(trace.effects, undisturbed.effects, completed)
    if completed:
        outcome = "resumed"
    elif state.status is RunStatus.FAILED:
        outcome = "dead-lettered"
        if state.reason == TerminationReason.INTERRUPTED_WRITE and not state.pending_effect:
            broken.append("it was interrupted in a write, and no fence stands")
    else:
        outcome = str(state.status)
    bodies = dict(Counter(body.key for body in trace.bodies))
    said = trace.said if broken else ""
    return Cell(trace.boundary, outcome, state.reason, broken, bodies, dict(trace.effects), said)


def other_effects(seen: Counter[str], undisturbed: Counter[str], completed: bool) -> Iterable[str]:
    """An effect that came more often than undisturbed, or, in a run that completed, did not come."""
    for name in sorted(seen | undisturbed):
        if seen[name] > undisturbed[name]:
            yield f"{name}: {seen[name]} instead of {undisturbed[name]}"
        elif completed and seen[name] < undisturbed[name]:
            yield f"{name}: only {seen[name]} instead of {undisturbed[name]}"
