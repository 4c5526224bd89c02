from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentruns.enums import StepOutcome
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from tests.agentruns.cases import asking, completed, interrupted, queued, writing

from .conftest import LogIn
from .pages import page_of, source, words


def test_says_what_is_known_and_what_is_not(viewer: Client) -> None:
    text = words(source(viewer, page_of(interrupted())))
    assert "its end was not recorded: whether it happened is not known." in text
    assert "The fence stands here." in text
    assert "interrupted write" in text
    assert "connection lost" in text


def test_shows_the_history_with_who_and_when(viewer: Client) -> None:
    run = completed(requested_by="grace")
    text = words(source(viewer, page_of(run)))
    assert re.search(
        r"queued grace .*claimed queue:elsewhere:1:aa .*completed queue:elsewhere", text
    )


@pytest.mark.parametrize("make", [queued, asking, completed])
def test_any_run_has_a_page(viewer: Client, make: object) -> None:
    assert callable(make)
    assert "Summary" in source(viewer, page_of(make()))


def test_shows_late_evidence(viewer: Client) -> None:
    run, claim, step = writing(stale=True)
    sweep()
    landed = Ending(StepOutcome.RETURNED, Payload.of({"id": 7}))
    AgentRun.objects.get(pk=run.pk).add_late_evidence(claim, step, landed)
    text = words(source(viewer, page_of(run)))
    assert "reported" in text
    assert "that it landed; nobody has confirmed that." in text


def test_payloads_need_their_own_permission(viewer: Client, log_in: LogIn) -> None:
    run = completed(request="a question", output="an answer")
    with CaptureQueriesContext(connection) as queries:
        page = source(viewer, page_of(run))
    assert "a question" not in page
    assert "an answer" not in page
    assert "with the permission to read them" in page
    read = " ".join(query["sql"] for query in queries)
    assert not [
        name for name in ("request", "output", "arguments", "result") if f'"{name}"' in read
    ]
    allowed = log_in("view_agentrun", "view_payload", name="grace")
    page = source(allowed, page_of(run))
    assert "a question" in page
    assert "an answer" in page
    assert "<details>" in page


def test_markup_nul_and_lone_surrogates_are_shown_harmlessly(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = completed(output="<script>alert(1)</script>\x00\ud800", agent="echo")
    page = source(client, page_of(run))
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x00" not in page


def test_a_megabyte_is_cut_by_the_database(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = completed(request="x" * 1_000_000, output="y" * 1_000_000)
    page = source(client, page_of(run))
    assert len(page) < 100_000
    assert "Only the beginning is shown." in page
    assert re.search(r"1,?000,?004 characters", page)


def test_more_is_shown_of_the_write_in_doubt(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = interrupted(arguments={"body": "z" * 20_000})
    assert "z" * 20_000 in source(client, page_of(run))


def test_a_damaged_payload_is_shown_as_it_is_stored(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = completed()
    Step.objects.filter(run=run).update(result=Payload("9:<damaged>"))
    assert "9:&lt;damaged&gt;" in source(client, page_of(run))


def test_its_queries_do_not_grow_with_the_journal(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = interrupted()

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            source(client, page_of(run))
        return len(queries)

    before = count()
    for number in range(5):
        step = Step.objects.filter(run=run).earliest("pk")
        step.pk, step.attempt = None, 10 + number
        step.save(force_insert=True)
    assert count() == before


def test_without_javascript_there_is_nothing_missing(viewer: Client) -> None:
    page = source(viewer, page_of(interrupted()))
    main = page[page.index('<div id="content"') :]
    assert "<script" not in main
    assert "onclick" not in main


def test_a_run_that_is_not_there(viewer: Client) -> None:
    run = queued()
    run.pk += 1
    response = viewer.get(page_of(run), follow=True)
    assert "doesn’t exist" in response.content.decode()


def test_who_may_not_view_sees_nothing(log_in: LogIn) -> None:
    assert log_in("view_payload").get(page_of(queued())).status_code == 403


def test_a_held_run_is_not_called_certain(viewer: Client) -> None:
    run = queued()
    run.hold(by="grace", reason="restored")
    text = words(source(viewer, page_of(run)))
    assert "Nobody knows here what it did after this database was written" in text
    assert "Its writes are certain" not in text
