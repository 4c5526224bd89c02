"""The pages of a verdict that a second person has to give, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentruns.enums import EventKind, Resolution, RunStatus
from agentruns.models import Step
from tests.agentruns.cases import conf, interrupted
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import messages, page_of, resolve_page, source, words
from .test_resolve import post

OPERATOR = ("view_agentrun", "view_payload", "resolve_agentrun")


@pytest.fixture(autouse=True)
def two_persons() -> Iterator[None]:
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        yield


@pytest.fixture
def ada(log_in: LogIn) -> Client:
    return log_in(*OPERATOR)


@pytest.fixture
def grace(log_in: LogIn) -> Client:
    return log_in(*OPERATOR, name="grace")


def test_it_says_beforehand_that_two_decide(ada: Client) -> None:
    run = interrupted()
    for url in (page_of(run), resolve_page(run)):
        assert "Two persons decide here" in words(source(ada, url))
    with conf(RESOLVE_NEEDS_SECOND_PERSON=False):
        assert "Two persons" not in words(source(ada, page_of(run)))


def test_the_first_proposes_and_is_told_that_another_is_needed(ada: Client) -> None:
    run = interrupted()
    response = post(ada, run, Resolution.DID_NOT_HAPPEN, reason="the bank has nothing")
    assert response.status_code == 302
    response = ada.get(page_of(run))
    assert "Your verdict is a proposal" in messages(response)[0]
    page = words(response.content.decode())
    assert "ada proposed at" in page
    assert "it did not happen. The reason: the bank has nothing." in page
    assert "That was you: another person is needed" in page
    assert reread(run).status == RunStatus.FAILED
    again = post(ada, run, Resolution.DID_NOT_HAPPEN)
    assert "another person must say the same" in again.content.decode()


def test_a_second_person_sees_who_proposed_what_and_why_and_says_the_same(
    ada: Client, grace: Client
) -> None:
    run = interrupted()
    post(ada, run, Resolution.DID_NOT_HAPPEN, reason="the bank has <b>nothing</b>")
    page = source(grace, resolve_page(run))
    assert "ada proposed at" in words(page)
    assert "the bank has &lt;b&gt;nothing&lt;/b&gt;" in page
    assert "It takes effect when you give the same verdict" in page
    assert post(grace, run, Resolution.DID_NOT_HAPPEN).status_code == 302
    assert messages(grace.get(page_of(run))) == ["Your verdict was taken."]
    assert reread(run).status == RunStatus.QUEUED
    history = words(source(ada, page_of(run)))
    assert "verdict proposed ada" in history
    assert "proposed_by: ada" in history


def test_a_result_is_not_shown_to_the_second_who_finds_it_out(ada: Client, grace: Client) -> None:
    run = interrupted()
    post(ada, run, Resolution.HAPPENED, result='{"id": 4711}')
    for url in (page_of(run), resolve_page(run)):
        page = source(grace, url)
        assert "4711" not in page
        assert "with the same result" in page
    other = post(grace, run, Resolution.HAPPENED, result='{"id": 4712}')
    assert other.status_code == 302
    assert "It is the proposal now" in messages(grace.get(page_of(run)))[0]
    assert post(ada, run, Resolution.HAPPENED, result='{"id":4712}').status_code == 302
    result = Step.objects.get(run=run).result
    assert result is not None
    assert result.value == {"id": 4712}
    assert run.history().get(kind=EventKind.RESOLVED).actor == "ada"


def test_a_proposal_on_a_state_that_moved_on_is_shown_to_be_void(
    ada: Client, grace: Client
) -> None:
    run = interrupted()
    post(ada, run, Resolution.LEFT)
    Step.objects.filter(run=run).update(late_error="something came")
    page = words(source(grace, resolve_page(run)))
    assert "It counts no more: the state has changed since." in page
    post(grace, run, Resolution.LEFT)
    assert reread(run).resolution == ""


def test_whoever_proposed_is_known_under_another_name(ada: Client) -> None:
    run = interrupted()
    post(ada, run, Resolution.LEFT)
    User.objects.filter(username="ada").update(username="ada.l")
    for url in (page_of(run), resolve_page(run)):
        assert "That was you: another person is needed" in words(source(ada, url))
