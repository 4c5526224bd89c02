from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from agentruns import figures
from agentruns.admin import dashboard
from agentruns.enums import EventKind, RunStatus, TerminationReason
from agentruns.models import AgentRun, Event
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
from .pages import DESK, LIST, page_of, source, words

DASHBOARD = reverse("admin:agentruns_agentrun_dashboard")


def board(client: Client, **query: str) -> Any:
    response = client.get(DASHBOARD, query)
    assert response.status_code == 200
    return response.context["board"]


def sums(chart: Any) -> dict[str, int]:
    return {row.key: row.total for row in chart.rows if row.total}


def test_it_counts_what_waits_and_leads_to_the_oldest(viewer: Client) -> None:
    first, _second = interrupted(), interrupted()
    parked, due, stale = asking(), queued(), running(stale=True)[0]
    running()
    completed()
    tiles = {tile.key: (tile.count, tile.oldest) for tile in board(viewer).tiles}
    assert tiles == {
        "unresolved": (2, first),
        "waiting": (1, parked),
        "due": (1, due),
        "stale": (1, stale),
    }
    page = source(viewer, DASHBOARD)
    assert page_of(first) in page
    assert f'href="{LIST}?attention=stale"' in page


def test_its_links_list_what_it_counts(viewer: Client) -> None:
    interrupted()
    asking()
    queued()
    running(stale=True)
    completed()
    for tile in board(viewer).tiles:
        if tile.query:
            listed = viewer.get(LIST + tile.query).context["cl"].result_list
            assert [run.pk for run in listed] == [tile.oldest.pk]


def test_ages_are_since_what_waits_began_to_wait(viewer: Client) -> None:
    run, parked = queued(), asking()
    hour_ago = timezone.now() - timedelta(hours=1)
    AgentRun.objects.filter(pk=run.pk).write_guarded(available_at=hour_ago)
    AgentRun.objects.filter(pk=parked.pk).write_guarded(created_at=hour_ago)
    parked.journal().update(started_at=hour_ago + timedelta(minutes=30))
    ages = {tile.key: tile.age for tile in board(viewer).tiles}
    assert ages["due"].startswith("1 h 0 min")
    assert ages["waiting"].startswith("30 min")


def test_it_draws_runs_by_what_became_of_them_and_when(viewer: Client) -> None:
    completed()
    old = completed()
    failed()
    AgentRun.objects.filter(pk=old.pk).write_guarded(
        created_at=timezone.now() - timedelta(hours=30)
    )
    assert sums(board(viewer).runs) == {RunStatus.COMPLETED: 1, RunStatus.FAILED: 1}
    assert sums(board(viewer, window="week").runs)[RunStatus.COMPLETED] == 2
    newest = board(viewer).runs.rows[4].counts
    assert (newest[-1], sum(newest[:-1])) == (1, 0)


def test_it_draws_retries_and_losses(viewer: Client) -> None:
    run = exhausted()
    run.retry(by="ada", reason="")
    run.add_event(EventKind.REQUEUED)
    assert sums(board(viewer).moves) == {
        EventKind.DEAD_LETTERED: 1,
        EventKind.RETRIED: 1,
        EventKind.REQUEUED: 1,
    }


def test_it_counts_dead_letters_by_reason_the_most_first(viewer: Client) -> None:
    interrupted()
    failed()
    failed()
    shares = board(viewer).dead_letters
    assert [(share.label, share.count) for share in shares[:2]] == [
        (TerminationReason.NOT_RETRYABLE.label, 2),
        (TerminationReason.INTERRUPTED_WRITE.label, 1),
    ]
    assert not any(share.count for share in shares[2:])
    assert (shares[0].width, shares[1].width) == (1000, 500)


def test_it_tells_the_time_of_recorded_steps_only(viewer: Client) -> None:
    done = completed()
    took = timezone.now() - timedelta(seconds=10)
    done.journal().update(started_at=took, ended_at=took + timedelta(seconds=7))
    interrupted()
    asking()
    rows = board(viewer).spreads
    assert [(row.name, row.agent, row.median, row.count) for row in rows] == [
        ("read", "echo", "7.0 s", 1)
    ]


def test_it_reads_a_bounded_number_and_says_so(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "READ_RUNS", 2)
    monkeypatch.setattr(figures, "COUNTED", 1)
    old = [failed() for _ in range(3)]
    two_hours_ago = timezone.now() - timedelta(hours=2)
    for run in old[:2]:
        AgentRun.objects.filter(pk=run.pk).write_guarded(created_at=two_hours_ago)
    shown = board(viewer)
    assert shown.runs_read_from
    assert shown.runs.table[0][1] is None
    assert "more than 1" in words(source(viewer, DASHBOARD))
    assert "They reach back to" in words(source(viewer, DASHBOARD))


def test_its_queries_do_not_grow_and_load_no_payload(viewer: Client) -> None:
    def sent() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            source(viewer, DASHBOARD)
        return [query["sql"] for query in queries]

    def one_of_each() -> None:
        interrupted(request="a secret", arguments="a secret")
        writing()
        asking()
        completed()

    one_of_each()
    before = sent()
    for _ in range(3):
        one_of_each()
    after = sent()
    assert len(after) == len(before)
    names = ("request", "output", "arguments", "result", "late_result")
    assert not [sql for sql in after for name in names if f'"{name}"' in sql]


def test_every_picture_has_its_numbers_as_text(viewer: Client) -> None:
    completed()
    Event.objects.update(at=timezone.now())
    page = source(viewer, DASHBOARD)
    assert page.count('role="img"') == page.count("The numbers are in the table below.")
    assert "completed: 1 in all, at most 1 in one slot" in page
    assert " style=" not in page[page.index('<div id="content"') :]


@pytest.mark.parametrize("window", ["", "\x00", "century", "hour", "month"])
def test_any_stretch_of_time_may_be_asked_for(viewer: Client, window: str) -> None:
    assert board(viewer, window=window).window.key in {"hour", "day", "month"}


def test_it_is_linked_from_the_app_and_the_desk(viewer: Client) -> None:
    for url in (reverse("admin:app_list", args=["agentruns"]), DESK, LIST):
        assert f'href="{DASHBOARD}"' in source(viewer, url)


def test_who_may_not_view_sees_nothing(log_in: LogIn) -> None:
    assert log_in().get(DASHBOARD).status_code == 403
