"""Whatever a stranger wrote is shown harmlessly on every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from django.test import Client
from django.urls import reverse

from agentruns import registry
from agentruns.models import AgentRun
from tests.agentruns.cases import conf
from tests.agentruns.hostile import SHORT, TEXT, hostile_runs

from .conftest import LogIn
from .pages import DESK, LIST, act, answer_page, page_of, resolve_page
from .test_permissions import ALL, asked_page, named

INBOX, DASHBOARD = (named(name)(AgentRun()) for name in ("inbox", "dashboard"))
HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]")
MOST = 700_000  # characters of a page, though its run holds megabytes


class Elements(HTMLParser):
    """Finds what a browser would execute or load in what a page says of a run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            leads = name in ("href", "src", "action", "formaction", "data")
            if name.startswith("on") or (leads and re.match(r"\s*javascript:|x$", value or "")):
                self.found.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script" and "harmed" in data:
            self.found.append(data)


@pytest.fixture
def runs(log_in: LogIn, monkeypatch: pytest.MonkeyPatch) -> dict[str, AgentRun]:
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
    return hostile_runs()


def refuse_harm(client: Client, url: str, typed: dict[str, str] | None = None) -> str:
    response = client.get(url) if typed is None else client.post(url, typed)
    assert response.status_code == 200, url
    page = response.content.decode()
    assert Elements(page).found == [], url
    assert not HIDDEN.search(page), url
    assert len(page) < MOST, (url, len(page))
    return page


def test_the_parser_finds_what_would_be_executed() -> None:
    assert len(Elements(TEXT).found) >= 4


def test_every_page_shows_it_harmlessly(log_in: LogIn, runs: dict[str, AgentRun]) -> None:
    client = log_in(*ALL, name="ada")
    urls = [LIST, DESK, INBOX, DASHBOARD, *map(page_of, runs.values())]
    urls += [resolve_page(runs["doubtful"]), resolve_page(runs["late"]), resolve_page(runs["left"])]
    urls += [answer_page(runs["approval"]), answer_page(runs["question"])]
    urls += [reverse("admin:agentruns_agentrun_history", args=[run.pk]) for run in runs.values()]
    for url in urls:
        refuse_harm(client, url)


def test_what_a_person_types_is_shown_again_harmlessly(
    log_in: LogIn, runs: dict[str, AgentRun]
) -> None:
    client = log_in(*ALL)
    typed = {"verdict": "happened", "result": TEXT, "reason": TEXT}
    page = refuse_harm(client, resolve_page(runs["doubtful"]), typed)
    assert "&lt;img src=x onerror=" in page
    given = {
        "decision": "approve",
        "note": TEXT,
        "digest": TEXT,
        "answer_0": TEXT,
        "answer_1": TEXT,
    }
    refuse_harm(client, answer_page(runs["approval"]), given)
    refuse_harm(client, answer_page(runs["question"]), given)


def test_a_proposal_and_what_became_of_it_are_shown_harmlessly(
    log_in: LogIn, runs: dict[str, AgentRun]
) -> None:
    client, run = log_in(*ALL), runs["doubtful"]
    digest = run.resolution_digest()
    typed = {"digest": digest, "verdict": "left", "reason": TEXT[:1000]}
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        assert client.post(resolve_page(run), typed).status_code == 302
        refuse_harm(client, page_of(run))
        refuse_harm(client, resolve_page(run))
    refuse_harm(client, resolve_page(run), {**typed, "digest": "of yesterday"})


def test_messages_and_questions_before_an_action_are_harmless(
    log_in: LogIn, runs: dict[str, AgentRun]
) -> None:
    client = log_in(*ALL)
    some = runs["failed"], runs["queued"], runs["completed"]
    for name in ("cancel_runs", "retry_runs", "move_runs", "fail_runs"):
        for more in ({}, {"confirmed": "yes", "reason": TEXT, "version": SHORT}):
            page = act(client, name, *some, index="0", **more).content.decode()
            assert not HIDDEN.search(page), name
            assert Elements(page).found == [], name


def test_the_whole_of_a_long_call_is_text(log_in: LogIn, runs: dict[str, AgentRun]) -> None:
    response = log_in(*ALL).get(asked_page(runs["approval"]))
    assert response["Content-Type"].startswith("text/plain")
    text = response.content.decode()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\u202eback" in text
