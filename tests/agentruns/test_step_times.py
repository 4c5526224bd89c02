from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from agentruns import clock
from agentruns.admin import dashboard
from agentruns.admin.wording import took
from agentruns.enums import Resolution, ToolEffect
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from agentruns.models import step as step_module
from agentruns.segment import Segment
from tests.agentruns.admin.conftest import LogIn, log_in
from tests.agentruns.admin.pages import page_of, words
from tests.agentruns.cases import reaped
from tests.factories import READ, TRANSACTIONAL, WRITE, executed, reread, step_of

__all__ = ["log_in"]

pytestmark = pytest.mark.django_db(transaction=True)

VERDICTS = [Resolution.HAPPENED, Resolution.DID_NOT_HAPPEN]


@pytest.fixture
def viewer(log_in: LogIn) -> Client:
    return log_in("view_agentrun")


def length(step: Step) -> timedelta:
    assert step.ended_at is not None
    return step.ended_at - step.started_at


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("effect", [READ, TRANSACTIONAL])
def test_a_step_begins_when_its_body_begins(
    monkeypatch: pytest.MonkeyPatch, effect: ToolEffect
) -> None:
    """The worker's clock goes on by an hour while the body runs."""

    def body(key: str) -> None:
        monkeypatch.setattr(step_module, "clock", lambda: clock.clock() + 3600)

    run = executed(lambda segment: segment.step("step", body, effect=effect))
    assert timedelta(hours=1) <= length(step_of(run, "step")) < timedelta(hours=2)


@pytest.mark.usefixtures("form")
def test_a_step_of_no_known_beginning_begins_at_its_record() -> None:
    run = executed(lambda segment: segment.step("step", lambda key: None, effect=READ))
    assert timedelta(0) <= length(step_of(run, "step")) < timedelta(hours=1)


def raised() -> AgentRun:
    def body(key: str) -> Any:
        raise ConnectionResetError("cut")

    run = executed(lambda segment: segment.step("write", body, effect=WRITE))
    assert run.termination_reason == "interrupted_write"
    return run


def decide(run: AgentRun, verdict: Resolution) -> None:
    result = Payload.of("sent") if verdict is Resolution.HAPPENED else None
    digest = run.resolution_digest()
    run.resolve(
        verdict, by="ada", reason="so", digest=digest, result=result, worker_may_act_confirmed=True
    )


def test_a_write_that_raised_ends_when_it_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its run is taken back an hour later, when the database is there again."""

    def agent(segment: Segment) -> Any:
        def body(key: str) -> Any:
            raise ConnectionResetError("cut")

        try:
            return segment.step("write", body, effect=WRITE)
        finally:
            monkeypatch.setattr(step_module, "clock", lambda: clock.clock() + 3600)

    step = step_of(executed(agent))
    assert step.ended_at is not None
    assert step.outcome == "raised"
    assert length(step) < timedelta(0), (
        "an hour before the time of the database, which did not go on"
    )


@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_a_verdict_settled_took_nobody_knows_how_long(
    viewer: Client, verdict: Resolution
) -> None:
    run = raised()
    assert took(step_of(run)) != "not known"
    decide(run, verdict)
    assert step_of(run).ended_at is None
    assert took(step_of(run)) == "not known"
    assert "write (call), not known" in words(viewer.get(page_of(run)).content.decode())
    assert dashboard.time_per_step()[0] == []


def test_the_waiting_of_people_is_not_drawn(viewer: Client) -> None:
    run = raised()
    decide(run, Resolution.HAPPENED)
    (bar,) = viewer.get(page_of(run)).context["page"].timeline.bars
    assert bar.width == 3, "the narrowest that can be seen"


def test_a_reaped_write_was_not_seen_to_end(viewer: Client) -> None:
    run = reaped()
    step = Step.objects.get(run=run)
    assert step.ended_at is None
    assert took(step) == "not known"
    (bar,) = viewer.get(page_of(reread(run))).context["page"].timeline.bars
    assert bar.fenced
    assert bar.took == "not known"
