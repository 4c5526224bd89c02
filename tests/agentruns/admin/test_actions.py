from __future__ import annotations

from django.test import Client
from django_q.models import OrmQ

from agentruns.enums import EventKind, RunStatus
from agentruns.models import AgentRun
from tests.agentruns.cases import completed, interrupted, queued, writing
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import LIST, act, messages, page_of, source


def test_cancel_asks_first(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "cancel_agentrun")
    run = queued()
    response = act(client, "cancel_runs", run, index="0")
    assert "Yes, cancel them" in response.content.decode()
    assert str(run.uuid) in response.content.decode()
    assert reread(run).status == RunStatus.QUEUED


def test_cancel_is_done_to_each_and_each_refusal_is_explained(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "cancel_agentrun")
    waits, done, inside = queued(), completed(), writing()[0]
    response = act(client, "cancel_runs", waits, done, inside, confirmed="yes")
    assert reread(waits).status == RunStatus.CANCELLED
    assert waits.history().get(kind=EventKind.CANCELLED).actor == "ada"
    assert reread(done).status == RunStatus.COMPLETED
    assert reread(inside).cancel_requested_at is not None
    said = messages(response)
    assert any(str(done.uuid) in text and "completed" in text for text in said)
    assert any(str(inside.uuid) in text and "inside a write" in text for text in said)
    assert "Done for 1 run." in said


def test_nothing_is_cancelled_that_nobody_has_seen(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "cancel_agentrun")
    seen, unseen = queued(), queued()
    response = act(client, "cancel_runs", seen, select_across="1", confirmed="yes")
    assert response.status_code == 403
    assert reread(unseen).status == reread(seen).status == RunStatus.QUEUED


def test_wake_sends_the_wake_up_again(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun")
    run, later = queued(), queued(delay_seconds=3600)
    OrmQ.objects.all().delete()
    response = act(client, "wake_runs", run, later, index="0")
    assert [task.args() for task in OrmQ.objects.all()] == [(str(run.uuid),)]
    said = messages(response)
    assert any(str(later.uuid) in text and "not queued" in text for text in said)
    assert "Done for 1 run." in said


def test_who_may_only_look_is_offered_nothing_and_refused(viewer: Client) -> None:
    run = queued()
    assert "cancel_runs" not in source(viewer, LIST)
    assert "cancel_runs" not in source(viewer, page_of(run))
    for action in ("cancel_runs", "wake_runs"):
        act(viewer, action, run, confirmed="yes")
    assert AgentRun.objects.get().status == RunStatus.QUEUED
    assert not run.history().filter(kind=EventKind.CANCELLED).exists()


def test_one_permission_does_not_give_the_other(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun")
    run = queued()
    page = source(client, page_of(run))
    assert "wake_runs" in page
    assert "cancel_runs" not in page
    act(client, "cancel_runs", run, confirmed="yes")
    assert reread(run).status == RunStatus.QUEUED


def test_a_runs_page_offers_what_its_state_allows(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun", "cancel_agentrun")
    for run, offered in ((queued(), True), (completed(), False), (interrupted(), False)):
        page = source(client, page_of(run))
        assert ("Cancel this run" in page) is offered
        assert ("Wake this run" in page) is offered
