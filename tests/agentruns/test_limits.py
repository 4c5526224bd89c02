"""Agents that may have only so many runs at a time: who gets a slot, who waits, and who is woken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_q.models import OrmQ

from agentruns import api, hotpath, hotrun, registry
from agentruns.enums import EventKind, RunStatus
from agentruns.exceptions import NoFreeSlot
from agentruns.fields import Payload
from agentruns.guard import Claim, from_now
from agentruns.limitchecks import check_limits
from agentruns.models import AgentLimit, AgentRun
from agentruns.reaper import sweep
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    OWNER,
    WRITE,
    claim,
    expire,
    fenced,
    history,
    question,
    queued,
    registered,
    reread,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent() -> Iterator[str]:
    """An agent that does what its request says, and may have two runs at a time."""
    with registered(does_as_asked, max_running=2) as name:
        yield name


def does_as_asked(segment: Segment) -> Any:
    if segment.request == "ask":
        return segment.wait_for_input("how", "how many?")
    if segment.request == "fail":
        raise ValueError("a bug")
    if segment.request == "fail for now":
        raise ConnectionError("away")
    return segment.request


def taken(run: AgentRun) -> Claim | None:
    found = hotrun.claim(run.uuid, OWNER, registry.served(), registry.limits())
    return None if found is None else found[1]


def full(agent: str) -> list[tuple[AgentRun, Claim]]:
    return [claim(queued(agent)) for _slot in range(2)]


def in_line(agent: str, request: Any = "a request") -> AgentRun:
    run = queued(agent, request)
    assert taken(run) is None
    OrmQ.objects.all().delete()
    return reread(run)


def woken() -> list[UUID]:
    """The runs whose wake-ups are in the queue, in their order; it is empty then."""
    messages = list(OrmQ.objects.order_by("pk"))
    OrmQ.objects.all().delete()
    return [UUID(message.task["args"][0]) for message in messages]


# Who gets a slot.


def test_a_run_of_a_full_agent_waits_as_it_is(agent: str) -> None:
    full(agent)
    run = queued(agent)
    before = reread(run)
    assert taken(run) is None
    row = reread(run)
    assert (row.status, row.claim_epoch, row.waits_for_slot) == (RunStatus.QUEUED, 0, True)
    assert (row.available_at, row.requeue_count) == (before.available_at, 0)
    assert history(run) == [EventKind.QUEUED]


def test_as_many_as_may_be_are_claimed(agent: str) -> None:
    runs = [queued(agent) for _ in range(4)]
    assert [taken(run) is not None for run in runs] == [True, True, False, False]


def test_agents_do_not_count_for_each_other(agent: str) -> None:
    full(agent)
    with registered(does_as_asked, max_running=1) as other:
        assert taken(queued(other)) is not None
        assert taken(queued(other)) is None


def test_a_free_slot_is_taken_by_who_was_in_line(agent: str) -> None:
    [(first, held), _second] = full(agent)
    run = in_line(agent)
    first.complete(held, Payload.of("done"))
    assert taken(run) is not None
    assert not reread(run).waits_for_slot


def test_a_dead_worker_s_run_has_its_slot_until_it_is_reaped(agent: str) -> None:
    [(first, _held), _second] = full(agent)
    run = in_line(agent)
    expire(first)
    assert taken(run) is None
    sweep()
    assert reread(first).status == RunStatus.QUEUED
    assert taken(run) is not None


def test_a_run_that_was_answered_needs_a_slot_again(agent: str) -> None:
    run, held = claim(queued(agent))
    run.ask(held, question())
    run.suspend(held)
    full(agent)
    reread(run).answer("question", Payload.of("yes"), by="somebody")
    assert taken(run) is None
    assert reread(run).waits_for_slot


def test_a_synchronous_run_is_refused_where_no_slot_is_free(agent: str) -> None:
    full(agent)
    before = AgentRun.objects.count()
    with pytest.raises(NoFreeSlot, match="2 of 2 runs"):
        api.run(agent, "now")
    assert AgentRun.objects.count() == before


def test_a_synchronous_run_takes_a_slot(agent: str) -> None:
    claim(queued(agent))
    seen: list[Claim | None] = []
    rival = queued(agent)

    def agent_that_looks(segment: Segment) -> None:
        seen.append(taken(rival))

    name = agent
    registry._agents[name] = registry.RegisteredAgent(name, agent_that_looks, max_running=2)
    api.run(name)
    assert seen == [None]


def test_a_claim_of_an_agent_without_a_limit_costs_a_look_at_the_agent_at_most(agent: str) -> None:
    """Which is in the one statement, where a claim is one."""

    def statements(**limits: Any) -> list[str]:
        run = queued("free")
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert hotrun.claim(run.uuid, OWNER, **limits) is not None
        return [query["sql"].split(" ", 1)[0] for query in captured]

    look = [] if hotpath.has_statements() else ["SELECT"]
    assert statements(limits=registry.limits()) == [*look, *statements()]
    assert not AgentLimit.objects.exists()


def test_a_slot_that_was_left_while_a_run_got_in_line_is_not_missed(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever left it did not see the run in line yet."""
    [(first, held), _second] = full(agent)
    run = queued(agent)
    waited: list[AgentRun] = []
    wait_for_slot = AgentRun.wait_for_slot

    def leave_a_slot_first(row: AgentRun) -> None:
        wait_for_slot(row)
        if not waited:
            waited.append(row)
            first.complete(held, Payload.of("done"))

    monkeypatch.setattr(AgentRun, "wait_for_slot", leave_a_slot_first)
    assert taken(run) is not None
    assert waited


@pytest.mark.parametrize("nonsense", [0, -1, True, "3", 2.0])
def test_E014_a_limit_that_is_no_number_of_runs(agent: str, nonsense: Any) -> None:
    assert check_limits() == []
    registry._agents[agent] = registry.RegisteredAgent(agent, does_as_asked, max_running=nonsense)
    [found] = check_limits()
    assert found.id == "agentruns.E014"
    assert repr(nonsense) in found.msg


def test_an_agent_of_pydantic_ai_has_one_too() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    from nrllm import register_agent
    from nrllm.registration import _agents

    register_agent("with a limit", Agent(TestModel()), max_running=3)
    try:
        assert registry.limits()["with a limit"] == 3
    finally:
        del registry._agents["with a limit"], _agents["with a limit"]


# Who is woken when a slot is free.


@pytest.mark.parametrize("request_", ["", "ask", "fail", "fail for now"])
def test_whoever_leaves_a_slot_wakes_who_is_next(agent: str, request_: str) -> None:
    run = queued(agent, request_)
    [(other, held), (_further, _claim)] = full(agent)
    later, next_one = in_line(agent), in_line(agent)
    AgentRun.objects.filter(pk=next_one.pk).write_guarded(available_at=from_now(-60))
    other.complete(held, Payload.of("done"))
    execute(str(run.uuid))
    assert reread(run).status != RunStatus.RUNNING
    assert woken() == [next_one.uuid]
    assert not reread(next_one).waits_for_slot
    assert reread(later).waits_for_slot


def test_a_cancel_wakes_who_is_next(agent: str) -> None:
    [(first, _held), _second] = full(agent)
    run = in_line(agent)
    assert api.cancel(first.uuid) is RunStatus.CANCELLED
    assert woken() == [run.uuid]


def test_a_cancel_that_is_only_asked_for_wakes_nobody(agent: str) -> None:
    first, _held, _step = fenced(WRITE, agent=agent)
    claim(queued(agent))
    in_line(agent)
    assert api.cancel(first.uuid) is RunStatus.RUNNING
    assert woken() == []


@pytest.mark.parametrize(
    "lose",
    [
        lambda run: run.cancel(by="somebody"),
        lambda run: run.move_to_version("older", by="somebody"),
    ],
    ids=["cancelled", "of a version that is not here"],
)
def test_a_wake_up_that_takes_no_slot_is_passed_on(
    agent: str, lose: Callable[[AgentRun], object]
) -> None:
    [(first, _held), _second] = full(agent)
    woken_one, next_one = in_line(agent), in_line(agent)
    api.cancel(first.uuid)
    assert woken() == [woken_one.uuid]
    lose(woken_one)
    execute(str(woken_one.uuid))
    assert woken() == [next_one.uuid]


def test_a_queue_that_takes_no_message_puts_them_back_in_line(agent: str, settings: Any) -> None:
    settings.AGENTRUNS = {
        **settings.AGENTRUNS,
        "DISPATCHER": "tests.agentruns.test_limits.RefusingDispatcher",
    }
    [(first, _held), _second] = full(agent)
    run = in_line(agent)
    api.cancel(first.uuid)
    assert reread(run).waits_for_slot
    report = sweep()
    assert (report.woken, report.not_sent) == (0, 1)
    assert reread(run).waits_for_slot


class RefusingDispatcher:
    def wake(self, uuid: UUID) -> None:
        raise ConnectionError("the broker is away")


# What a sweep does.


def test_a_sweep_wakes_one_run_for_each_free_slot(agent: str) -> None:
    claims = full(agent)
    runs = [in_line(agent) for _ in range(3)]
    assert sweep().woken == 0
    for run, held in claims:
        run.complete(held, Payload.of("done"))
    assert sweep().woken_runs == [run.uuid for run in runs[:2]] == woken()


def test_a_sweep_leaves_the_rest_in_line_of_who_is_woken_when_a_slot_is_left(agent: str) -> None:
    """Runs that were to begin later, and runs whose wake-up was lost, get in line by a sweep."""
    full(agent)
    delayed = queued(agent, delay_seconds=0, woken=False)
    lost = queued(agent)
    AgentRun.objects.filter(pk=lost.pk).write_guarded(woken_at=from_now(-3600))
    fresh = queued(agent)
    assert sweep().woken == 0
    assert [reread(run).waits_for_slot for run in (delayed, lost, fresh)] == [True, True, False]


def test_a_full_agent_takes_nothing_of_a_sweep_from_others(agent: str) -> None:
    full(agent)
    for _ in range(5):
        queued(agent, woken=False)
    other = queued("free", woken=False)
    assert sweep(limit=1, batch_size=1).woken_runs == [other.uuid]


def test_a_sweep_that_reaps_a_run_wakes_who_is_next(agent: str) -> None:
    [(first, _held), _second] = full(agent)
    run = in_line(agent)
    expire(first)
    report = sweep()
    assert report.reaped == 1
    assert run.uuid in woken()


def test_a_dry_run_says_how_many_it_would_wake(agent: str) -> None:
    [(first, held), _second] = full(agent)
    in_line(agent)
    queued(agent, woken=False)
    queued("free", woken=False)
    assert sweep(dry_run=True).woken == 1
    first.complete(held, Payload.of("done"))
    assert sweep(dry_run=True).woken == 2
    assert sweep(dry_run=True, limit=1).woken == 1


def test_who_was_in_line_is_woken_when_the_limit_is_taken_back(agent: str) -> None:
    full(agent)
    run = in_line(agent)
    registry._agents[agent] = registry.RegisteredAgent(agent, does_as_asked)
    assert sweep().woken_runs == [run.uuid]


def test_a_sweep_that_does_not_know_the_agent_wakes_patiently(agent: str) -> None:
    """It can't tell how many may run: it does what it does for every run."""
    full(agent)
    in_line(agent)
    known = registry._agents.pop(agent)
    try:
        assert sweep().woken == 0
    finally:
        registry._agents[agent] = known


def test_a_worker_whose_database_fails_at_the_wake_up_has_settled_its_run(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise ConnectionError("away")

    run = queued(agent)
    monkeypatch.setattr(AgentRun.objects, "take_in_line", fail, raising=False)
    execute(str(run.uuid))
    assert reread(run).status == RunStatus.COMPLETED


# What is shown.


def said(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def test_commands_say_why_a_run_waits(agent: str) -> None:
    full(agent)
    run = in_line(agent)
    why = "waits for a free slot: 2 of 2 running"
    assert why in said("list_agent_runs")
    assert why in said("show_agent_run", str(run.uuid))
    [listed] = json.loads(said("list_agent_runs", "--in-line", "--json"))
    shown = json.loads(said("show_agent_run", str(run.uuid), "--json"))
    for data in (listed, shown):
        assert (data["uuid"], data["waits_for_slot"]) == (str(run.uuid), True)
        assert data["slots"] == {"running": 2, "most": 2}


def test_a_process_without_the_agent_can_not_say_how_many_there_are(agent: str) -> None:
    full(agent)
    in_line(agent)
    known = registry._agents.pop(agent)
    try:
        assert "waits for a free slot  " in said("list_agent_runs")
        [listed] = json.loads(said("list_agent_runs", "--in-line", "--json"))
        assert listed["slots"] is None
    finally:
        registry._agents[agent] = known


def test_the_admin_says_why_a_run_waits(agent: str, admin_client: Client) -> None:
    full(agent)
    run = in_line(agent)
    runs = reverse("admin:agentruns_agentrun_changelist")
    assert "queued: waits for a free slot" in admin_client.get(runs).text
    page = admin_client.get(reverse("admin:agentruns_agentrun_change", args=[run.pk])).text
    assert "a free slot: 2 of 2 running" in page
    known = registry._agents.pop(agent)
    try:
        page = admin_client.get(reverse("admin:agentruns_agentrun_change", args=[run.pk])).text
        assert "a free slot" in page
        assert "of 2 running" not in page
    finally:
        registry._agents[agent] = known


def test_a_run_that_was_long_in_line_and_lost_its_wake_up_is_woken_soon(
    agent: str, settings: Any
) -> None:
    """The pause grows with the wake-ups that were sent in vain, and in line none was sent."""
    settings.AGENTRUNS = {**settings.AGENTRUNS, "WAKE_AGAIN_SECONDS": 60}
    run = queued(agent)
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        available_at=from_now(-36_000), woken_at=from_now(-30), waits_for_slot=False
    )
    sweep()
    assert woken() == []
    AgentRun.objects.filter(pk=run.pk).write_guarded(woken_at=from_now(-61))
    sweep()
    assert woken() == [run.uuid]
