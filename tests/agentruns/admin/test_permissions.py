"""Every page, button and action, with and without each permission that it needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse

from agentruns.enums import RunStatus, StepKind
from agentruns.models import AgentRun
from tests.agentruns.cases import asking, failed, interrupted, queued
from tests.factories import snapshot
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import LIST, answer_page, page_of, resolve_page, source

VIEW, CANCEL, RETRY = "view_agentrun", "cancel_agentrun", "retry_agentrun"
RESOLVE, DECIDE, MOVE = "resolve_agentrun", "decide_agentrun", "move_agentrun"
PAYLOAD = "view_payload"
ALL = {VIEW, CANCEL, RETRY, RESOLVE, DECIDE, MOVE, PAYLOAD}
PREFIX = "admin:agentruns_agentrun_"


@dataclass(frozen=True)
class Place:
    """A page: what it needs, which run it is about, and where it is."""

    needs: frozenset[str]
    make: Callable[[], AgentRun]
    url: Callable[[AgentRun], str]


def approval() -> AgentRun:
    return asking(StepKind.APPROVAL, "a secret")


def asked_page(run: AgentRun) -> str:
    return f"{answer_page(run)}asked/?digest={run.journal().get().digest}"


def named(name: str) -> Callable[[AgentRun], str]:
    return lambda run: reverse(PREFIX + name)


def of_run(name: str) -> Callable[[AgentRun], str]:
    return lambda run: reverse(PREFIX + name, args=[run.pk])


# Nobody may add, change or delete a run by hand.
NEVER = frozenset({"never"})
PLACES = {
    "changelist": Place(frozenset({VIEW}), queued, named("changelist")),
    "change": Place(frozenset({VIEW}), interrupted, page_of),
    "history": Place(frozenset({VIEW}), interrupted, of_run("history")),
    "desk": Place(frozenset({VIEW}), interrupted, named("desk")),
    "dashboard": Place(frozenset({VIEW}), interrupted, named("dashboard")),
    "inbox": Place(frozenset({VIEW, DECIDE}), approval, named("inbox")),
    "answer": Place(frozenset({VIEW, DECIDE}), approval, answer_page),
    "asked": Place(frozenset({VIEW, DECIDE}), approval, asked_page),
    "resolve": Place(frozenset({VIEW, RESOLVE}), interrupted, resolve_page),
    "add": Place(NEVER, queued, named("add")),
    "delete": Place(NEVER, queued, of_run("delete")),
}
MISSING = [
    (name, missing)
    for name, place in PLACES.items()
    for missing in sorted(place.needs)
    if place.needs != NEVER
]


def test_every_page_is_in_the_table() -> None:
    urls = admin.site._registry[AgentRun].get_urls()
    names = {url.name.removeprefix("agentruns_agentrun_") for url in urls if url.name}
    assert names == set(PLACES)


def everything_for(run: AgentRun) -> dict[str, str]:
    """What presses every button there is, if one is let through."""
    _effect, attempt = run.standing_fence()
    question = run.journal().open_questions().first()
    digest = question.digest if question else run.resolution_digest()
    given = {"digest": digest, "verdict": "left", "decision": "approve", "reason": "so it is"}
    return {**given, "post": "yes", "attempt": str(attempt)}


@pytest.mark.parametrize(("name", "missing"), MISSING)
def test_without_a_permission_a_page_is_refused(log_in: LogIn, name: str, missing: str) -> None:
    place = PLACES[name]
    client, run = log_in(*(ALL - {missing})), place.make()
    before = snapshot(run)
    assert client.get(place.url(run)).status_code == 403
    assert client.post(place.url(run), everything_for(run)).status_code == 403
    assert snapshot(run) == before


@pytest.mark.parametrize("name", [name for name, place in PLACES.items() if place.needs != NEVER])
def test_with_its_permissions_alone_a_page_is_shown(log_in: LogIn, name: str) -> None:
    place = PLACES[name]
    run = place.make()
    assert log_in(*place.needs).get(place.url(run)).status_code == 200


@pytest.mark.parametrize("name", ["add", "delete"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_nobody_adds_or_deletes_a_run(log_in: LogIn, name: str, method: str) -> None:
    run = queued()
    response = getattr(log_in(*ALL), method)(PLACES[name].url(run), everything_for(run))
    assert response.status_code == 403
    assert AgentRun.objects.get() == run


def test_nobody_changes_a_run_by_hand(log_in: LogIn) -> None:
    run = queued()
    response = log_in(*ALL).post(page_of(run), {"status": "completed"})
    assert response.status_code == 403
    assert reread(run).status == RunStatus.QUEUED


@pytest.mark.parametrize("name", [name for name, place in PLACES.items() if place.needs != NEVER])
def test_somebody_who_is_not_of_the_staff_is_sent_to_log_in(
    transactional_db: None, name: str
) -> None:
    run = PLACES[name].make()
    before = snapshot(run)
    for answer in (
        Client().get(PLACES[name].url(run)),
        Client().post(PLACES[name].url(run), everything_for(run)),
    ):
        assert (answer.status_code, "login" in answer["Location"]) == (302, True)
    assert snapshot(run) == before


# The actions of the list, which are the buttons of a run's page, too.


@dataclass(frozen=True)
class Deed:
    permission: str
    make: Callable[[], AgentRun]
    happened: Callable[[AgentRun], bool]


DEEDS = {
    "cancel_runs": Deed(CANCEL, queued, lambda run: run.status == RunStatus.CANCELLED),
    "retry_runs": Deed(RETRY, failed, lambda run: run.status == RunStatus.QUEUED),
    "wake_runs": Deed(RETRY, queued, lambda run: run.history().filter(kind="woken").exists()),
    "move_runs": Deed(MOVE, queued, lambda run: run.agent_version == "2"),
    "fail_runs": Deed(MOVE, queued, lambda run: run.status == RunStatus.FAILED),
}


def test_every_action_is_in_the_table() -> None:
    actions = admin.site._registry[AgentRun].actions or ()
    assert {getattr(action, "__name__", action) for action in actions} == set(DEEDS)


def press(client: Client, name: str, run: AgentRun, confirmed: str) -> Any:
    chosen = {ACTION_CHECKBOX_NAME: [str(run.pk)], "confirmed": confirmed, "index": "0"}
    given = {"action": name, "reason": "so it is", "version": "2"}
    return client.post(LIST, {**chosen, **given})


@pytest.mark.parametrize("confirmed", ["", "yes"])
@pytest.mark.parametrize("name", DEEDS)
def test_without_its_permission_an_action_is_refused_and_no_button_is_shown(
    log_in: LogIn, name: str, confirmed: str
) -> None:
    deed = DEEDS[name]
    for missing, client in (
        (deed.permission, log_in(*(ALL - {deed.permission}))),
        (VIEW, log_in(*(ALL - {VIEW}), name="grace")),
        ("all but view", log_in(VIEW, name="alan")),
    ):
        run = deed.make()
        before = snapshot(run)
        assert press(client, name, run, confirmed).status_code == 403, missing
        assert snapshot(run) == before
        if missing != VIEW:
            assert name not in source(client, LIST)
            assert name not in source(client, page_of(run))


@pytest.mark.parametrize("name", DEEDS)
def test_with_its_permission_alone_an_action_is_offered_and_done(log_in: LogIn, name: str) -> None:
    deed = DEEDS[name]
    client, run = log_in(VIEW, deed.permission), deed.make()
    assert name in source(client, LIST)
    assert name in source(client, page_of(run))
    assert press(client, name, run, "yes").status_code == 302
    assert deed.happened(reread(run))


def test_an_action_that_is_none_is_refused(log_in: LogIn) -> None:
    run = queued()
    for name in ("resolve_runs", "delete_selected", "decide_runs"):
        assert press(log_in(*ALL, name=name), name, run, "yes").status_code == 403


def test_what_was_written_for_a_refused_action_is_not_lost(log_in: LogIn) -> None:
    run = failed()
    run.retry(by="grace")
    response = log_in(VIEW, RETRY).post(
        LIST,
        {
            "action": "retry_runs",
            ACTION_CHECKBOX_NAME: [str(run.pk)],
            "confirmed": "yes",
            "reason": "the bank <b>is back",
        },
        follow=True,
    )
    page = response.content.decode()
    assert "only a failed run" in page
    assert "What you wrote: the bank &lt;b&gt;is back" in page


# The buttons that lead to a page, and the payloads.


@pytest.mark.parametrize(
    ("permission", "make", "link"),
    [
        (RESOLVE, interrupted, "/resolve/"),
        (DECIDE, approval, reverse(PREFIX + "inbox")),
    ],
)
def test_a_button_is_for_those_whom_its_page_lets_in(
    log_in: LogIn, permission: str, make: Callable[[], AgentRun], link: str
) -> None:
    run = make()
    assert link in source(log_in(VIEW, permission), page_of(run))
    others = log_in(*(ALL - {permission}), name="grace")
    assert link not in source(others, page_of(run))
    assert link not in source(others, LIST)


@pytest.mark.parametrize("url", [page_of, resolve_page])
def test_payloads_are_for_those_who_may_read_them(
    log_in: LogIn, url: Callable[[AgentRun], str]
) -> None:
    run = interrupted(request="a secret", arguments="a secret")
    assert "a secret" in source(log_in(*ALL), url(run))
    assert "a secret" not in source(log_in(*(ALL - {PAYLOAD}), name="grace"), url(run))


def test_no_payload_is_shown_elsewhere(log_in: LogIn) -> None:
    interrupted(request="a secret", arguments="a secret")
    client = log_in(*ALL)
    for name, followed in itertools.product(("changelist", "desk", "dashboard"), ("", "1")):
        page = client.get(reverse(PREFIX + name), {"follow": followed} if followed else {})
        assert "a secret" not in page.content.decode()


def test_a_followed_page_is_for_those_who_may_view_it(log_in: LogIn) -> None:
    run = queued()
    assert log_in(*(ALL - {VIEW})).get(page_of(run), {"follow": "1"}).status_code == 403
    assert "refresh" in source(log_in(VIEW, name="grace"), page_of(run), follow="1")
