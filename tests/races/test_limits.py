"""Workers that want the last slot of an agent at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest
from django.db import DatabaseError, transaction

from agentruns import api, hotrun, registry
from agentruns.enums import RunStatus
from agentruns.exceptions import NoFreeSlot
from agentruns.fields import Payload
from agentruns.models import AgentRun, slots
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import OWNER, claim, queued, registered, reread
from tests.harness.database import end_own_connection

from .rivals import holding, second_comes_while, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

LIMITS = {"agent": 1}


@pytest.fixture(autouse=True)
def nobody_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that holds the others up for some seconds is no reason to put them in line here."""
    monkeypatch.setattr(slots, "LOCK_SECONDS", 60)


def claimed(run: AgentRun, limits: dict[str, int] = LIMITS) -> bool:
    return hotrun.claim(run.uuid, OWNER, limits=limits) is not None


def claims(run: AgentRun, limits: dict[str, int] = LIMITS) -> Callable[[], bool]:
    return lambda: claimed(run, limits)


def running() -> int:
    return int(AgentRun.objects.running().count())


@pytest.mark.parametrize("ever", [True, False], ids=["the agent's row is there", "it is not"])
def test_a_claim_that_waited_for_the_slot_finds_it_taken(ever: bool) -> None:
    if ever:
        run, held = claim(queued())
        assert claimed(queued(agent="agent"), {"agent": 2})
        run.complete(held, Payload.of("done"))
        AgentRun.objects.running().get().cancel(by="somebody")
    first, second = queued(), queued()
    rival = second_comes_while(claims(first), claims(second))
    assert rival.outcome() is False
    assert running() == 1
    assert reread(second).waits_for_slot


@pytest.mark.parametrize("most", [1, 3])
def test_many_claims_at_once_take_no_more_than_there_are(most: int) -> None:
    for _round in range(5):
        runs = [queued() for _ in range(8)]
        rivals = together(*[claims(run, {"agent": most}) for run in runs])
        assert [rival.outcome() for rival in rivals].count(True) == most
        assert running() == most
        for run in runs:
            run.cancel(by="somebody")


def test_a_claim_in_vain_waits_for_nobody() -> None:
    """Of a full agent, thousands may come in vain: they don't stand in line for a lock."""
    claim(queued())
    with holding(lambda: claim_under_lock(queued("other"), {"other": 5})):
        run = queued()
        assert not claimed(run)
    with holding(lambda: hold_slots("agent")):
        run = queued()
        assert not claimed(run)


def claim_under_lock(run: AgentRun, limits: dict[str, int]) -> None:
    assert claimed(run, limits)


def hold_slots(agent: str) -> None:
    from agentruns.models.slots import lock_slots

    with transaction.atomic():
        lock_slots(agent)


def test_agents_without_a_limit_wait_for_no_other_claim() -> None:
    with holding(lambda: hold_slots("agent")):
        assert claimed(queued(), {})
        assert claimed(queued("other"), {"agent": 1})


def test_synchronous_runs_at_the_same_moment_are_refused_but_one() -> None:
    inside: list[int] = []

    def agent(segment: Segment) -> str:
        inside.append(running())
        return "done"

    with registered(agent, max_running=1) as name:
        assert registry.limits()[name] == 1

        def runs() -> object:
            try:
                return api.run(name)
            except NoFreeSlot:
                return None

        outcomes = [rival.outcome() for rival in together(*[runs] * 4)]
    completed = [outcome for outcome in outcomes if outcome is not None]
    assert completed
    assert set(inside) == {1}
    assert AgentRun.objects.count() == len(completed)
    assert {run.status for run in AgentRun.objects.all()} == {RunStatus.COMPLETED}


def in_line(number: int) -> list[AgentRun]:
    runs = [queued() for _ in range(number)]
    AgentRun.objects.filter(pk__in=[run.pk for run in runs]).write_guarded(waits_for_slot=True)
    return runs


def next_in_line(most: int) -> Callable[[], list[UUID]]:
    return lambda: AgentRun.objects.take_in_line("agent", most, limit=1)


@pytest.mark.postgres  # elsewhere, the sweep wakes who was left
def test_those_who_leave_at_the_same_moment_wake_as_many_as_they_are() -> None:
    for _round in range(5):
        runs = in_line(6)
        rivals = together(*[next_in_line(3)] * 3)
        woken = [uuid for rival in rivals for uuid in rival.outcome()]
        assert len(woken) == len(set(woken)) == 3
        for run in runs:
            run.cancel(by="somebody")


def test_a_row_that_is_held_does_not_stop_the_line() -> None:
    first, second, _third = in_line(3)
    with holding(lambda: AgentRun.objects.select_for_update().get(pk=first.pk)):
        assert next_in_line(1)() == [second.uuid]


def test_a_connection_that_died_while_the_worker_was_busy_keeps_nobody_in_line() -> None:
    def agent(segment: Segment) -> str:
        with suppress(DatabaseError):
            end_own_connection()
        return "done"

    with registered(agent, max_running=1) as name:
        run, behind = queued(name), queued(name)
        AgentRun.objects.filter(pk=behind.pk).write_guarded(waits_for_slot=True)
        execute(str(run.uuid))
        assert reread(run).status == RunStatus.COMPLETED
        assert not reread(behind).waits_for_slot
        assert reread(behind).woken_at is not None


@pytest.mark.postgres
def test_a_claim_that_another_one_holds_up_for_long_puts_its_run_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker was paused in it, say: those of this agent wait no longer, and so hold up no worker."""
    monkeypatch.setattr(slots, "LOCK_SECONDS", 1)
    slots.make_slots("agent")
    run = queued()
    with holding(lambda: hold_slots("agent")):
        assert not claimed(run)
        row = reread(run)
        assert (row.status, row.waits_for_slot) == (RunStatus.QUEUED, True)
    assert claimed(run)
