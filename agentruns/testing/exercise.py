"""One run of an agent in worker processes, one of which is ended at a boundary."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.apps import apps
from django.db import transaction

from .. import registry
from ..api import RunState, decide, enqueue, status, submit_input
from ..conf import conf
from ..enums import WAITING, StepKind, ToolEffect
from ..exceptions import AgentRunError, PayloadError
from ..models import AgentRun, Step
from ..reaper import sweep
from ..tasks import execute
from .client import RecorderClient
from .invariants import Body, broken_promises
from .lanes import Lane
from .reporting import report_to
from .settling import NotSettled, run_until_settled
from .workers import Strike, Watch, Worker, start_worker

Counts = Counter[str]
OWN_APPS = frozenset({"agentruns", "django_q"})


@dataclass(frozen=True)
class CrashCase:
    """What the crash kit runs: an agent, a request, and what stands in for the world around it.

    `answers` are the model's, in turn, for an agent that has a model. `setup` is called in each
    worker before it begins: there, replace what acts on the outside by something that calls
    `report_effect()`. `observe` counts what is in the world, by name; the rows of the application's
    models are counted in any case. `inputs` answer questions, by the name of what asks (a tool's
    name) or by the key of the question's step; approvals are granted.
    """

    agent: str
    request: Any = None
    answers: Sequence[Any] | None = None
    setup: Callable[[], object] | None = None
    observe: Callable[[], Mapping[str, int]] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    worker_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in an undisturbed run: the nth worker's arrival at this point of this step."""

    segment: int
    point: str
    step: str = ""
    name: str = ""
    effect: str = ""


@dataclass
class Trace:
    """What was seen of one run: by the recorder, in its rows, and in the world around it."""

    boundary: Boundary | None
    state: RunState | None = None
    struck: bool = False
    stuck: str = ""
    bodies: list[Body] = field(default_factory=list)
    # Bodies that were started again though their step was recorded when the worker was ended.
    repeated: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    effects: Counts = field(default_factory=Counter)
    boundaries: list[Boundary] = field(default_factory=list)
    said: str = ""


class Stuck(AgentRunError):
    """A worker did not end by itself."""


class Exercise:
    """Carries one run through: executes, ends a worker at the boundary, reaps, resumes."""

    def __init__(self, case: CrashCase, lane: Lane, boundary: Boundary | None) -> None:
        self.case = case
        self.lane = lane
        self.trace = Trace(boundary)
        self.segment = 0
        self.recorded: set[str] = set()
        self.before: Counts = Counter()
        self.uuid = UUID(int=0)

    def carry_through(self) -> Trace:
        trace = self.trace
        world = observed(self.case)
        self.uuid = enqueue(self.case.agent, self.case.request).uuid
        try:
            trace.state = self._settle()
            self._disturb_the_end()
        except (NotSettled, Stuck) as error:
            trace.stuck = str(error)
            trace.state = status(self.uuid)
        trace.bodies = [
            Body(body["step"], body["name"], body["effect"], body["key"])
            for body in self.lane.recorder.bodies(run=self.uuid)
        ]
        trace.repeated = self._repeated()
        trace.broken = broken_promises(self.uuid, trace.bodies)
        trace.effects = observed(self.case) - world + reported(self.lane.recorder.effects())
        if trace.boundary is None:
            trace.boundaries = passed(self.lane.recorder.points())
        return trace

    def _settle(self) -> RunState:
        while True:
            state = run_until_settled(self.uuid, execute=self._work)
            if state.status not in WAITING:
                return state
            answer(self.uuid, self.case.inputs)

    def _disturb_the_end(self) -> None:
        """One more sweep, and the wake-up once more: an end is an end."""
        sweep()
        self._work(str(self.uuid))
        sweep()

    def _work(self, uuid: str) -> None:
        self.segment += 1
        boundary, recorder = self.trace.boundary, self.lane.recorder
        here = boundary is not None and boundary.segment == self.segment
        strike = Strike(boundary.point, boundary.step) if boundary and here else None
        watch = Watch(recorder, strike, lists_points=boundary is None)
        log = self.lane.folder / f"{uuid}.log"
        worker = start_worker(partial(work, self.case, recorder, uuid), log, watch)
        self._wait(worker)
        self.trace.said = worker.said()
        if strike is not None:
            self.trace.struck = bool(recorder.points(struck=worker.pid))
            self.before = Counter(body["step"] for body in recorder.bodies(run=uuid))
            journal = AgentRun.objects.get(uuid=uuid).journal().recorded()
            self.recorded = set(journal.values_list("key", flat=True))

    def _wait(self, worker: Worker) -> None:
        status = worker.wait(self.case.worker_seconds)
        if status is None or os.WIFSTOPPED(status):
            worker.kill()
            raise Stuck(f"a worker did not end in {self.case.worker_seconds:g} s")

    def _repeated(self) -> list[str]:
        after = Counter(body.key for body in self.trace.bodies) - self.before
        return [key for key in after if key in self.recorded]


def work(case: CrashCase, recorder: RecorderClient, uuid: str) -> None:
    """What a worker does: claim and execute, with the case's stand-ins."""
    report_to(recorder)
    with ExitStack() as stack:
        if case.answers is not None:
            stack.enter_context(answering(case.agent, case.answers))
        if case.setup is not None:
            case.setup()
        execute(uuid)


def answering(agent: str, answers: Sequence[Any]) -> Any:
    """Have this agent's model answer from a script, for the time of a `with` block.

    Raises:
        UnknownAgent: no agent of this name is registered.
        AgentRunError: it has no model.
    """
    known = registry.get(agent)
    if known.scripted is None:
        raise AgentRunError(f"{agent!r} is a plain function: it has no model to answer for")
    return patch.dict(registry._agents, {agent: known.scripted(answers)})


def answer(uuid: UUID, inputs: Mapping[str, Any]) -> None:
    """Grant what waits for approval, answer what is asked.

    Raises:
        Stuck: there is no answer to a question, or not one that fits.
    """
    run = AgentRun.objects.get(uuid=uuid)
    for question in run.journal().open_questions():
        if question.kind == StepKind.APPROVAL:
            decide(uuid, question.key, True, by="crash kit", digest=question.digest)
            continue
        name = question.key if question.key in inputs else question.name
        if name not in inputs:
            raise Stuck(no_answer(question))
        try:
            submit_input(uuid, question.key, inputs[name], by="crash kit")
        except PayloadError as error:
            raise Stuck(f"inputs[{name!r}]: {error}") from error


def no_answer(question: Step) -> str:
    asked = question.arguments.text if question.arguments else ""
    return (
        f"it waits for an answer to {question.name!r} (step {question.key}), which asks "
        f"{asked[:500]}; give it in CrashCase.inputs, or with --inputs "
        f"'{json.dumps({question.name: '...'})}'"
    )


def observed(case: CrashCase) -> Counts:
    """Count the rows of every model of the application, and what the case counts itself."""
    counts: Counts = Counter(case.observe() if case.observe else {})
    with transaction.atomic(using=conf.DATABASE):
        for model in apps.get_models():
            options = model._meta
            if options.managed and not options.proxy and options.app_label not in OWN_APPS:
                counts[f"rows of {options.label}"] = model._base_manager.count()
    return counts


def reported(effects: Sequence[Mapping[str, Any]]) -> Counts:
    """Count effects; those of one name and idempotency key are one."""
    keyed = {(e["name"], e["idempotency_key"]) for e in effects if e["idempotency_key"]}
    counts = Counter(name for name, _key in keyed)
    return counts + Counter(e["name"] for e in effects if not e["idempotency_key"])


def passed(points: Sequence[Mapping[str, Any]]) -> list[Boundary]:
    """The boundaries that a run came to, in their order."""
    workers = list(dict.fromkeys(point["pid"] for point in points))
    found = [
        Boundary(
            workers.index(point["pid"]) + 1,
            point["point"],
            point["step"],
            point.get("name", ""),
            point.get("effect", str(ToolEffect.READ_ONLY) if point["step"] else ""),
        )
        for point in points
    ]
    return list(dict.fromkeys(found))
