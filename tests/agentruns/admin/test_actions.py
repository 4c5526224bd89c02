from __future__ import annotations

from django.test import Client
from django_q.models import OrmQ

from agentruns.enums import EventKind, RunStatus
from agentruns.models import AgentRun
from tests.agentruns.cases import completed, exhausted, failed, interrupted, queued, writing
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


def test_wake_asks_first_and_sends_the_wake_up_again(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun")
    run, later = queued(), queued(delay_seconds=3600)
    OrmQ.objects.all().delete()
    response = act(client, "wake_runs", run, later, index="0")
    assert "Yes, wake them" in response.content.decode()
    assert not OrmQ.objects.exists()
    response = act(client, "wake_runs", run, later, confirmed="yes")
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


def test_retry_asks_first_and_refuses_a_write_in_doubt(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun")
    certain, given_up, doubtful = failed(), exhausted(), interrupted()
    response = act(client, "retry_runs", certain, given_up, doubtful, index="0")
    assert "Yes, retry them" in response.content.decode()
    assert reread(certain).status == RunStatus.FAILED
    response = act(
        client, "retry_runs", certain, given_up, doubtful, confirmed="yes", reason="it is back"
    )
    assert reread(certain).status == reread(given_up).status == RunStatus.QUEUED
    assert reread(doubtful).status == RunStatus.FAILED
    event = certain.history().get(kind=EventKind.RETRIED)
    assert event.data is not None
    assert (event.actor, event.data.value["why"]) == ("ada", "it is back")
    said = messages(response)
    assert any(str(doubtful.uuid) in text and "certain" in text for text in said)
    assert "Done for 2 runs." in said


def test_retry_is_offered_where_all_writes_are_certain(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun")
    for run, offered in ((failed(), True), (interrupted(), False), (queued(), False)):
        assert ("Retry this run" in source(client, page_of(run))) is offered


def test_without_the_permission_nothing_is_retried(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "cancel_agentrun", "resolve_agentrun")
    run = failed()
    assert "retry_runs" not in source(client, page_of(run))
    act(client, "retry_runs", run, confirmed="yes")
    assert reread(run).status == RunStatus.FAILED
