"""A worker takes what it serves; what nobody takes is shown, and moved or given up by a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django_q.models import OrmQ

from agentruns import api
from agentruns.enums import RunStatus, TerminationReason
from agentruns.exceptions import PayloadError, TransitionRefused
from agentruns.guard import from_now
from agentruns.models import AgentRun
from agentruns.reaper import sweep
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import (
    OWNER,
    READ,
    claim,
    dead_lettered_write,
    empty_fence_by_hand,
    history,
    queued,
    registered,
    reread,
    running,
    step_of,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("form")]


def reads(segment: Segment) -> str:
    value: str = segment.step("read", lambda key: "value", effect=READ)
    return value


@pytest.fixture
def agent() -> Iterator[str]:
    """An agent of version 2."""
    with registered(reads, version="2") as name:
        yield name


def age(run: AgentRun, seconds: float) -> None:
    """Let the run have been due, and woken, so long ago."""
    then = from_now(-seconds)
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=then, woken_at=then)


@pytest.mark.parametrize("version", ["", "1", "2.0"])
def test_a_run_of_another_version_stays_queued(agent: str, version: str) -> None:
    run = queued(agent, agent_version=version)
    execute(str(run.uuid))
    row = reread(run)
    assert (row.status, row.claim_epoch, row.requeue_count) == (RunStatus.QUEUED, 0, 0)
    declined = run.history().get(kind="declined")
    assert declined.data is not None
    assert declined.data.value == {"wants": version, "serves": "2"}


def test_a_run_of_an_agent_that_is_not_here_stays_queued() -> None:
    run = queued("of another project")
    execute(str(run.uuid))
    assert reread(run).status == RunStatus.QUEUED
    declined = run.history().get(kind="declined")
    assert declined.data is not None
    assert declined.data.value == {"wants": "", "serves": None}


def test_a_refusal_is_written_down_once_for_each_version_that_a_worker_has() -> None:
    """A run that nobody serves is woken for ever; its history does not grow with that."""
    run = queued(agent_version="1")
    for version in ("2", "3", "2", "3"):
        for worker in ("queue:a:1:1", "queue:b:1:1"):
            assert AgentRun.objects.claim(run.uuid, worker, {"agent": version}) is None
    declined = [event.details["serves"] for event in run.history().filter(kind="declined")]
    assert declined == ["2", "3"]
    run.move_to_version("4", by="ada")
    assert AgentRun.objects.claim(run.uuid, OWNER, {"agent": "2"}) is None
    last = run.history().latest("pk").details
    assert last == {"wants": "4", "serves": "2"}


def test_a_run_of_this_version_is_executed(agent: str) -> None:
    run = queued(agent, agent_version="2")
    execute(str(run.uuid))
    assert reread(run).status == RunStatus.COMPLETED
    assert "declined" not in history(run)


def test_enqueue_stores_the_version_of_the_process_that_accepts(agent: str) -> None:
    assert AgentRun.objects.get(uuid=api.enqueue(agent).uuid).agent_version == "2"


def test_the_version_is_judged_under_the_lock() -> None:
    """Who moves the run while its wake-up is on the way decides who takes it."""
    run = queued(agent_version="1")
    run.move_to_version("2", by="ada")
    assert AgentRun.objects.claim(run.uuid, OWNER, {"agent": "1"}) is None
    assert AgentRun.objects.claim(run.uuid, OWNER, {"agent": "2"}) is not None


def test_a_declined_run_is_woken_again(agent: str) -> None:
    run = queued(agent, agent_version="1")
    execute(str(run.uuid))
    OrmQ.objects.all().delete()
    age(run, 3600)
    assert sweep().woken == 1
    assert [task.args() for task in OrmQ.objects.all()] == [(str(run.uuid),)]


def test_what_is_due_for_long_is_untaken(agent: str) -> None:
    fresh, old, later = queued(agent), queued(agent), queued(agent, delay_seconds=60)
    taken, _claim = running()
    for run in (old, taken):
        age(run, 601)
    age(fresh, 500)
    assert list(AgentRun.objects.untaken()) == [old]
    assert later.status == RunStatus.QUEUED


def test_a_run_that_was_moved_is_woken_and_executed(agent: str) -> None:
    run = queued(agent, agent_version="1")
    age(run, 3600)
    OrmQ.objects.all().delete()
    api.move(run.uuid, "2", by="ada", reason="2 reads what 1 wrote")
    assert [task.args() for task in OrmQ.objects.all()] == [(str(run.uuid),)]
    assert not AgentRun.objects.untaken().exists()
    moved = run.history().get(kind="moved")
    assert moved.data is not None
    assert (moved.actor, moved.data.value) == (
        "ada",
        {"from": "1", "to": "2", "why": "2 reads what 1 wrote"},
    )
    execute(str(run.uuid))
    assert reread(run).status == RunStatus.COMPLETED


def test_a_run_that_is_not_due_keeps_its_time_when_it_is_moved() -> None:
    run = queued(agent_version="1", delay_seconds=60, woken=False)
    api.move(run.uuid, "2", by="ada")
    row = reread(run)
    assert (row.available_at, row.woken_at) == (run.available_at, None)
    assert OrmQ.objects.count() == 0


def test_a_failed_run_is_moved_and_then_retried(agent: str) -> None:
    run = queued(agent, agent_version="1")
    run.fail(by="ada", reason="1 is gone")
    api.move(run.uuid, "2", by="ada")
    assert reread(run).status == RunStatus.FAILED
    api.retry(run.uuid, by="ada")
    execute(str(run.uuid))
    assert reread(run).status == RunStatus.COMPLETED


def test_a_journal_that_does_not_fit_the_other_version_fails_the_run(agent: str) -> None:
    def old(segment: Segment) -> None:
        segment.step("write", lambda key: "written")
        raise ConnectionResetError

    with registered(old, version="1") as older:
        run = queued(older, agent_version="1")
        execute(str(run.uuid))
    AgentRun.objects.filter(pk=run.pk).write_guarded(agent=agent, available_at=from_now(-1))
    api.move(run.uuid, "2", by="ada")
    execute(str(run.uuid))
    row = reread(run)
    assert (row.status, row.error_class) == (RunStatus.FAILED, "JournalMismatch")
    assert "'write'" in row.error_message


def test_moving_changes_no_fence() -> None:
    run, step = dead_lettered_write()
    run.move_to_version("2", by="ada")
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == ("non_idempotent_write", step.pk)
    assert row.termination_reason == TerminationReason.INTERRUPTED_WRITE


def test_moving_to_the_same_version_is_refused() -> None:
    run = queued(agent_version="2")
    with pytest.raises(TransitionRefused, match="already"):
        run.move_to_version("2", by="ada")
    with pytest.raises(PayloadError):
        run.move_to_version("2" * 201, by="ada")
    assert history(run) == ["queued"]


def test_a_run_that_is_given_up_is_dead_lettered_and_says_why() -> None:
    run = queued()
    api.fail(run.uuid, by="ada", reason="nobody serves it")
    row = reread(run)
    assert (row.status, row.termination_reason) == ("failed", "not_retryable")
    assert row.error_message == "failed by ada: nobody serves it"
    assert run.history().get(kind="dead_lettered").actor == "ada"


def test_giving_up_hides_no_write_in_doubt() -> None:
    """Somebody emptied the column and queued the run by hand; the journal is the second witness."""
    run, step = dead_lettered_write()
    empty_fence_by_hand(run)
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        status="queued", termination_reason="", finished_at=None
    )
    run.fail(by="ada", reason="nobody serves it")
    row = reread(run)
    assert row.termination_reason == TerminationReason.INTERRUPTED_WRITE
    assert (row.pending_effect, row.pending_step_id) == ("non_idempotent_write", step.pk)
    assert step_of(run).state == "uncertain"


def test_what_a_worker_has_is_neither_moved_nor_given_up() -> None:
    run = queued(agent_version="1")
    claim(run)
    attempts: tuple[Callable[[], None], ...] = (
        lambda: api.move(run.uuid, "2", by="ada"),
        lambda: api.fail(run.uuid, by="ada", reason=""),
    )
    for attempt in attempts:
        with pytest.raises(TransitionRefused, match="running"):
            attempt()
