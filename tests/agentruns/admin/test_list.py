from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentruns.admin import paginator
from agentruns.enums import FailureClass, ToolEffect
from agentruns.failures import Failure
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
from .pages import DESK, LIST, page_of, source, words


def uuids(client: Client, **query: str) -> set[UUID]:
    response = client.get(LIST, query)
    assert response.status_code == 200
    return {run.uuid for run in response.context["cl"].result_list}


def test_shows_what_an_operator_looks_for(viewer: Client) -> None:
    run, claim, _ = writing()
    text = words(source(viewer, LIST))
    for shown in (str(run.uuid), "running", "echo", claim.owner, "non-idempotent write", " s"):
        assert shown in text


def test_says_that_a_lease_has_run_out(viewer: Client) -> None:
    running(stale=True)
    assert "ran out" in words(source(viewer, LIST))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"attention": "fenced"}, {"writing", "interrupted"}),
        ({"attention": "unresolved"}, {"interrupted"}),
        ({"attention": "waiting"}, {"waiting"}),
        ({"attention": "stale"}, {"stale"}),
        ({"attention": "due"}, {"queued"}),
        ({"dead_lettered": "any"}, {"interrupted", "failed", "exhausted"}),
        ({"dead_lettered": "interrupted_write"}, {"interrupted"}),
        ({"dead_lettered": "retries_exhausted"}, {"exhausted"}),
        ({"dead_lettered": "not_retryable"}, {"failed"}),
        ({"dead_lettered": "any", "attention": "fenced"}, {"interrupted"}),
        ({"status__exact": "completed"}, {"completed"}),
        ({"agent": "reads"}, {"completed"}),
        ({"q": "reads"}, {"completed"}),
        ({"q": " order 7 "}, {"queued"}),
        ({"q": "ada"}, {"stale"}),
        ({"q": "order"}, set()),
    ],
)
def test_filters_and_search(viewer: Client, query: dict[str, str], found: set[str]) -> None:
    runs: dict[str, AgentRun] = {
        "queued": queued(correlation_id="order 7"),
        "stale": running(stale=True, requested_by="ada")[0],
        "writing": writing()[0],
        "interrupted": interrupted(),
        "failed": failed(),
        "exhausted": exhausted(),
        "completed": completed(agent="reads"),
        "waiting": asking(),
    }
    names = {run.uuid: name for name, run in runs.items()}
    assert {names[uuid] for uuid in uuids(viewer, **query)} == found


def test_a_uuid_is_found_with_and_without_hyphens(viewer: Client) -> None:
    run, other = queued(), queued()
    assert uuids(viewer, q=str(run.uuid)) == uuids(viewer, q=run.uuid.hex) == {run.uuid}
    assert uuids(viewer) == {run.uuid, other.uuid}


@pytest.mark.parametrize("query", ["attention=delete", "dead_lettered=%00", "agent=%00", "q=%00"])
def test_nonsense_in_the_address_does_no_harm(viewer: Client, query: str) -> None:
    queued()
    assert viewer.get(f"{LIST}?{query}").status_code == 200


def queries_for(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        source(client, url)
    return [query["sql"] for query in queries]


def test_its_queries_do_not_grow_with_the_runs(viewer: Client) -> None:
    writing()
    one = queries_for(viewer, LIST)
    for _ in range(5):
        interrupted()
    assert len(queries_for(viewer, LIST)) == len(one)


def test_it_loads_no_payload(viewer: Client) -> None:
    completed(request="a secret", output="another secret")
    sent = queries_for(viewer, LIST)
    assert not [sql for sql in sent if '"request"' in sql or '"output"' in sql]


def test_it_counts_no_further_than_it_lists(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paginator, "MAX_LISTED", 2)
    for _ in range(3):
        queued()
    counts = [sql for sql in queries_for(viewer, LIST) if "COUNT(" in sql]
    assert counts
    assert all("LIMIT 2" in sql for sql in counts)
    assert "Only the newest of these runs" in source(viewer, LIST)


def test_it_leads_to_the_run_and_to_the_desk(viewer: Client) -> None:
    run = queued()
    page = source(viewer, LIST)
    assert f'href="{page_of(run)}"' in page
    assert DESK in page


def test_nobody_adds_changes_or_deletes_a_run(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "add_agentrun", "change_agentrun", "delete_agentrun")
    run = queued()
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(page_of(run), {"requested_by": "eve"}).status_code == 403
    assert client.post(page_of(run).replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert "delete_selected" not in source(client, LIST)
    assert AgentRun.objects.get().requested_by == ""


def test_who_may_not_view_sees_nothing(log_in: LogIn) -> None:
    assert log_in().get(LIST).status_code == 403


def in_order(client: Client, **query: str) -> list[UUID]:
    return [run.uuid for run in client.get(LIST, query).context["cl"].result_list]


@pytest.mark.parametrize(
    ("attention", "make"), [("unresolved", interrupted), ("waiting", asking), ("due", queued)]
)
def test_who_waits_longest_comes_first(
    viewer: Client, attention: str, make: Callable[[], AgentRun]
) -> None:
    first, second = make(), make()
    assert in_order(viewer, attention=attention) == [first.uuid, second.uuid]
    assert in_order(viewer) == [second.uuid, first.uuid]


def test_a_term_is_searched_wherever_it_is_the_whole_of_something(viewer: Client) -> None:
    runs = [queued(agent="reads"), queued(requested_by="reads"), queued(correlation_id="reads")]
    queued()
    assert in_order(viewer, q="reads") == [run.uuid for run in reversed(runs)]


def test_an_idempotent_write_is_fenced_while_it_runs_and_not_when_it_failed(
    viewer: Client,
) -> None:
    run, claim, step = writing(effect=ToolEffect.IDEMPOTENT_WRITE)
    assert uuids(viewer, attention="fenced") == {run.uuid}
    run.recover(claim, Failure(FailureClass.UNKNOWN), RuntimeError("boom"), step)
    assert uuids(viewer, attention="fenced") == set()
    assert uuids(viewer, dead_lettered="any") == {run.uuid}
