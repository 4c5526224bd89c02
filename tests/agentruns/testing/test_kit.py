"""The kit tells a product that keeps its promises from one that breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection, transaction

from agentruns import hotpath
from agentruns.enums import EventKind, FailureClass, ToolEffect
from agentruns.exceptions import GivenBack, UnknownAgent
from agentruns.failures import Failure
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step, StepCall
from agentruns.models.querysets import AgentRunQuerySet
from agentruns.models.row import RunRow
from agentruns.segment import Segment
from agentruns.testing import CrashReport, NothingToCrash, report_effect
from agentruns.testing.boundaries import Point
from agentruns.testing.databases import scratch_databases
from agentruns.testing.lanes import side_by_side
from agentruns.verdict import Verdict
from tests import factories
from tests.crash.matrix.cells import Cell, Signal, Situation
from tests.crash.matrix.drill import Result, drill
from tests.project.models import LedgerEntry

REPEATABLE = ToolEffect.IDEMPOTENT_WRITE

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("transactional_db")]

Crash = Callable[..., CrashReport]


def outcomes(report: CrashReport, name: str) -> dict[str, str]:
    return {c.boundary.point: c.word for c in report.cells if c.boundary.name == name}


def test_a_write_that_must_not_be_repeated_is_dead_lettered_where_its_worker_dies_in_it(
    crash_agent_run: Crash,
) -> None:
    def writes(segment: Segment) -> object:
        LedgerEntry.objects.count()
        return segment.step("write", lambda key: report_effect("acted"))

    with factories.registered(writes) as agent:
        report = crash_agent_run(agent, lanes=1)
    report.check()
    dead = {"after_stamp", "in_body", "before_record", "in_record"}
    assert outcomes(report, "write") == {
        point: "dead-lettered" if point in dead else "resumed"
        for point in ("before_stamp", "in_stamp", *sorted(dead), "after_record")
    }
    assert report.undisturbed.effects == {"acted": 1}


@pytest.mark.parametrize("effect", [ToolEffect.READ_ONLY, ToolEffect.IDEMPOTENT_WRITE])
def test_a_tool_that_is_not_what_it_says_is_caught(
    crash_agent_run: Crash, effect: ToolEffect
) -> None:
    def lies(segment: Segment) -> object:
        def act(key: str) -> None:
            LedgerEntry.objects.create(run=segment.run.uuid, idempotency_key=key, amount=1)

        return segment.step("act", act, effect=effect)

    with factories.registered(lies) as agent:
        report = crash_agent_run(agent, lanes=1)
    caught = {cell.boundary.point for cell in report.cells if cell.broken}
    assert caught == {"before_record", "in_record"}
    assert all("rows of project.LedgerEntry: 2 instead of 1" in line for line in report.broken)
    with pytest.raises(AssertionError, match="broke a promise"):
        report.check()
    assert not LedgerEntry.objects.exists(), "the kit wrote into a database that is not its own"


def test_a_tool_that_forgets_what_it_did_is_caught(crash_agent_run: Crash) -> None:
    """What it notes in its own memory is gone with the process."""
    done: set[str] = set()

    def forgets(segment: Segment) -> object:
        def act(key: str) -> None:
            if key not in done:
                done.add(key)
                report_effect("acted")

        return segment.step("act", act, effect=ToolEffect.IDEMPOTENT_WRITE)

    with factories.registered(forgets) as agent:
        assert len(crash_agent_run(agent, lanes=1).broken) == 2


def test_an_agent_that_does_something_else_each_time_is_said_to(crash_agent_run: Crash) -> None:
    def wanders(segment: Segment) -> object:
        return segment.step(
            f"step-{segment.run.uuid}", lambda key: None, effect=ToolEffect.READ_ONLY
        )

    with factories.registered(wanders) as agent:
        broken = crash_agent_run(agent, lanes=1).broken
    assert broken
    assert all("the boundary was not reached again" in line for line in broken)


def test_there_must_be_an_agent_that_completes(crash_agent_run: Crash) -> None:
    def fails(segment: Segment) -> object:
        raise ValueError("a bug")

    with pytest.raises(UnknownAgent):
        crash_agent_run("nobody")
    with factories.registered(fails) as agent, pytest.raises(NothingToCrash, match="a bug"):
        crash_agent_run(agent, lanes=1)


def test_a_question_without_an_answer_is_named_and_how_to_give_one(crash_agent_run: Crash) -> None:
    def asks(segment: Segment) -> object:
        return segment.wait_for_input("size_of", {"question": "How wide?"}, key="size:1")

    with factories.registered(asks) as agent:
        with pytest.raises(NothingToCrash) as refused:
            crash_agent_run(agent, lanes=1, inputs={"width": 3})
        for given in ({"size_of": 3}, {"size:1": 3}):
            assert crash_agent_run(agent, lanes=1, inputs=given).broken == []
    said = str(refused.value)
    assert "'size_of' (step size:1)" in said
    assert "How wide?" in said
    assert """--inputs '{"size_of": "..."}'""" in said


def test_it_forks_no_worker_inside_a_transaction(crash_agent_run: Crash) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="inside a transaction"):
        crash_agent_run("echo")
    assert not connection.in_atomic_block


def as_if_idempotent(original: Any) -> Any:
    def stamp(run: AgentRun, claim: Claim, call: StepCall, approval: str | None = None) -> Step:
        step: Step = original(run, claim, replace(call, effect=REPEATABLE), approval)
        return step

    return stamp


def without_claims(original: Any) -> Any:
    def add_event(run: RunRow, kind: EventKind, **data: Any) -> None:
        if kind is not EventKind.CLAIMED:
            original(run, kind, **data)

    return add_event


def as_a_failure(run: AgentRun, claim: Claim) -> Verdict:
    return run.recover(claim, Failure(FailureClass.TRANSIENT), GivenBack("asked to stop"))


# On PostgreSQL, statements do what is broken here: have the portable form do it.
PORTABLE = (hotpath, "has_statements", lambda: False)

# What is broken, the cell that must notice it, and what it says.
SABOTAGE: dict[str, tuple[list[tuple[Any, str, Any]], Cell, str]] = {
    "the fence says that the write may be repeated": (
        [(hotpath, "stamp", as_if_idempotent(hotpath.stamp))],
        Cell(ToolEffect.NON_IDEMPOTENT_WRITE, Point.IN_BODY, Situation.QUEUED, Signal.KILL),
        "must not be repeated, was started 2 times",
    ),
    "the history has a gap": (
        [PORTABLE, (RunRow, "add_event", without_claims(RunRow.add_event))],
        Cell(ToolEffect.READ_ONLY, Point.IN_BODY, Situation.QUEUED, Signal.KILL),
        "the history has claims []",
    ),
    "a run that has lost its worker is not taken back": (
        [PORTABLE, (AgentRunQuerySet, "stale", lambda runs: runs.none())],
        Cell(ToolEffect.READ_ONLY, Point.IN_BODY, Situation.QUEUED, Signal.KILL),
        "NotSettled",
    ),
    "SIGTERM costs a retry": (
        [(AgentRun, "give_back", as_a_failure)],
        Cell(ToolEffect.READ_ONLY, Point.IN_BODY, Situation.QUEUED, Signal.TERM),
        "cost 1 retries",
    ),
}  # fmt: skip


@pytest.fixture
def databases(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), scratch_databases(1):
        yield


def results(*cells: Cell) -> list[Result]:
    found: list[Result] = []
    side_by_side(1, cells, drill, found.append, RETRY_BACKOFF_SECONDS=0.0)
    return found


def test_the_matrix_notices_a_product_that_is_broken(databases: None) -> None:
    for what, (patches, cell, said) in SABOTAGE.items():
        (sound,) = results(cell)
        assert sound.broken == [], what
        with ExitStack() as stack:
            for owner, name, replacement in patches:
                stack.enter_context(patch.object(owner, name, replacement))
            (broken,) = results(cell)
        assert said in "; ".join(broken.broken), what
