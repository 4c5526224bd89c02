from __future__ import annotations

from django.test import Client
from django_q.models import OrmQ

from agentruns.guard import from_now
from agentruns.models import AgentRun
from tests.agentruns.cases import completed, queued, running
from tests.harness.runs import history, reread

from .conftest import LogIn
from .pages import LIST, act, messages, page_of, source, words


def of_version(version: str) -> AgentRun:
    run = queued()
    AgentRun.objects.filter(pk=run.pk).write_guarded(agent_version=version)
    return reread(run)


def test_says_that_this_process_has_another_version(viewer: Client) -> None:
    text = words(source(viewer, page_of(of_version("<1>"))))
    assert "It needs version '<1>' of its agent; this process has version ''." in text
    assert "What the workers have is not known here." in text
    assert "needs version" not in words(source(viewer, page_of(of_version(""))))


def test_moving_asks_first_with_the_version_that_is_here(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "move_agentrun")
    run, taken = of_version("1"), running()[0]
    page = act(client, "move_runs", run, taken, index="0").content.decode()
    assert "Yes, move them" in page
    assert "version 1" in words(page)
    assert history(run) == ["queued"]
    OrmQ.objects.all().delete()
    response = act(client, "move_runs", run, taken, confirmed="yes", version="2", reason="it fits")
    assert reread(run).agent_version == "2"
    assert [task.args() for task in OrmQ.objects.all()] == [(str(run.uuid),)]
    said = messages(response)
    assert any(str(taken.uuid) in text and "can't be moved" in text for text in said)
    assert "Done for 1 run." in said


def test_giving_up_asks_first(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "move_agentrun")
    run = of_version("1")
    assert "Yes, give them up" in act(client, "fail_runs", run, index="0").content.decode()
    assert reread(run).status == "queued"
    act(client, "fail_runs", run, confirmed="yes", reason="gone")
    assert reread(run).error_message == "failed by ada: gone"


def test_the_buttons_are_where_the_state_allows_them(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "move_agentrun")
    page = source(client, page_of(of_version("1")))
    assert "Move this run to another version" in page
    assert "Give this run up" in page
    page = source(client, page_of(completed()))
    assert "move_runs" not in page
    assert "fail_runs" not in page


def test_without_the_permission_nothing_is_moved_or_given_up(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "retry_agentrun", "cancel_agentrun", "resolve_agentrun")
    run = of_version("1")
    page = source(client, page_of(run))
    assert "move_runs" not in page
    assert "fail_runs" not in page
    for action in ("move_runs", "fail_runs"):
        act(client, action, run, confirmed="yes", version="2", reason="x")
    assert (reread(run).status, reread(run).agent_version) == ("queued", "1")


def test_the_list_has_a_filter_for_what_nobody_took(viewer: Client) -> None:
    fresh, old = queued(), queued()
    AgentRun.objects.filter(pk=old.pk).write_guarded(available_at=from_now(-3600))
    page = source(viewer, LIST, attention="untaken")
    assert str(old.uuid) in page
    assert str(fresh.uuid) not in page
