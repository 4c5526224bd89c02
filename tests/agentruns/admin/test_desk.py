from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentruns.admin import desk
from agentruns.enums import FailureClass, Resolution, ToolEffect
from agentruns.failures import Failure
from agentruns.guard import from_now
from agentruns.models import AgentRun
from tests.agentruns.cases import (
    asking,
    completed,
    exhausted,
    failed,
    interrupted,
    queued,
    running,
    writing,
)

from .conftest import LogIn
from .pages import DESK, page_of, source, words


def listed(client: Client) -> list[AgentRun]:
    response = client.get(DESK)
    assert response.status_code == 200
    return [row.run for section in response.context["sections"] for row in section.rows]


def test_the_worst_comes_first(viewer: Client) -> None:
    current = writing()[0]
    certain, given_up = failed(), exhausted()
    first, second = interrupted(), interrupted()
    assert listed(viewer) == [first, second, given_up, certain, current]


def test_it_shows_nothing_else(viewer: Client) -> None:
    queued()
    running(stale=True)
    completed()
    asking()
    assert listed(viewer) == []
    assert words(source(viewer, DESK)).count("None.") == 5


def untaken() -> AgentRun:
    run = queued()
    AgentRun.objects.filter(pk=run.pk).write_guarded(
        agent_version="1", available_at=from_now(-3600)
    )
    return run


def test_what_nobody_takes_is_on_it_with_what_is_known(viewer: Client) -> None:
    old, _fresh = untaken(), queued()
    assert listed(viewer) == [old]
    text = words(source(viewer, DESK))
    assert "1 h 0 min" in text
    assert "It needs version '1' of its agent; this process has version ''." in text


def test_each_row_says_what_is_known_and_what_is_not(viewer: Client) -> None:
    interrupted()
    exhausted(message="the endpoint is down")
    failed(message="no such account")
    writing()
    writing(stale=True)
    text = words(source(viewer, DESK))
    assert "and its end was not recorded: whether it happened is not known." in text
    assert (
        "It was retried 0 times; the last thing known of it is: RuntimeError: the endpoint" in text
    )
    assert "a retry does not cure: RuntimeError: no such account. Its writes are certain" in text
    assert re.search(
        r"is inside send since .* left; whether it has happened yet is not known", text
    )
    assert "whose lease ran out" in text


def test_an_idempotent_write_in_doubt_is_said_to_be_repeatable(viewer: Client) -> None:
    run, claim, step = writing(effect=ToolEffect.IDEMPOTENT_WRITE)
    run.recover(claim, Failure(FailureClass.UNKNOWN), RuntimeError("boom"), step)
    assert "send, which may be repeated, may or may not have happened" in words(
        source(viewer, DESK)
    )


def test_a_write_that_was_closed_leaves_the_desk(viewer: Client) -> None:
    run = interrupted()
    assert listed(viewer) == [run]
    run.resolve(Resolution.LEFT, by="ada", reason="known", digest=run.resolution_digest())
    assert listed(viewer) == []
    assert "ada closed it as it is" in words(source(viewer, page_of(run)))


def test_strangers_text_is_escaped(viewer: Client) -> None:
    failed(message="<img src=x onerror=alert(1)>")
    page = source(viewer, DESK)
    assert "<img" not in page
    assert "&lt;img" in page


def test_its_queries_do_not_grow_and_load_no_payload(viewer: Client) -> None:
    def sent() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            source(viewer, DESK)
        return [query["sql"] for query in queries]

    before = sent()
    for _ in range(3):
        interrupted(request="a secret", arguments="a secret")
        writing()
    after = sent()
    assert len(after) == len(before)
    names = ("request", "output", "arguments", "result", "late_result")
    assert not [sql for sql in after for name in names if f'"{name}"' in sql]


def test_it_leads_on_where_there_are_more(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "SHOWN", 1)
    first, _second = interrupted(), interrupted()
    assert listed(viewer) == [first]
    link = re.search(r'href="([^"]*attention=unresolved)"', source(viewer, DESK))
    assert link is not None
    assert len(viewer.get(link[1]).context["cl"].result_list) == 2


def test_every_link_of_the_desk_leads_to_its_runs(viewer: Client) -> None:
    interrupted()
    exhausted()
    writing()
    untaken()
    for group in desk.GROUPS:
        listed_there = viewer.get(f"/admin/agentruns/agentrun/?{group.query}")
        assert listed_there.status_code == 200
        assert listed_there.context["cl"].result_list


def test_it_has_headings_and_no_script(viewer: Client) -> None:
    interrupted()
    page = source(viewer, DESK)
    main = page[page.index('<div id="content"') :]
    assert re.findall(r"<h(\d)", main)[:5] == ["1", "2", "2", "2", "2"]
    assert "<script" not in main


def test_who_may_not_view_sees_nothing(log_in: LogIn) -> None:
    assert log_in().get(DESK).status_code == 403


def test_a_stranger_is_asked_to_log_in(client: Client, transactional_db: None) -> None:
    assert client.get(DESK).status_code == 302
