"""Two operators at once, in two windows: a verdict by two, and a page whose state moved on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from agentruns import api
from agentruns.admin.payloads import SHOWN_FENCED
from agentruns.enums import Resolution, RunStatus, StepKind
from agentruns.models import AgentRun
from tests.agentruns.admin.pages import answer_page, page_of, resolve_page
from tests.agentruns.cases import answered, asking, conf, failed, interrupted
from tests.harness.runs import reread

from .conftest import log_in, new_window
from .pressing import press

pytestmark = pytest.mark.browser


@pytest.fixture
def grace(browser: Browser, live_server: Any, page: Page) -> Iterator[Page]:
    """The window of another operator; `page` is ada's."""
    User.objects.create_superuser("grace", password="secret")
    window = new_window(browser, live_server)
    log_in(window, "grace")
    yield window
    window.context.close()


def give(page: Page, run: AgentRun, verdict: str, reason: str) -> None:
    page.goto(resolve_page(run))
    page.get_by_role("radio", name=verdict).check()
    page.get_by_label("Reason").fill(reason)
    press(page, "Give this verdict")


def test_one_proposes_and_another_has_it_take_effect(page: Page, grace: Page) -> None:
    run = interrupted()
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        page.goto(page_of(run))
        expect(page.locator("#content")).to_contain_text("Two persons decide here")
        give(page, run, "It did not happen", "the bank has nothing")
        expect(page.locator(".messagelist")).to_contain_text("Your verdict is a proposal")
        expect(page.locator("#content")).to_contain_text("That was you: another person is needed")
        give(page, run, "It did not happen", "I am sure")
        expect(page.locator(".errorlist")).to_contain_text("another person must say the same")
        assert reread(run).status == RunStatus.FAILED

        grace.goto(page_of(run))
        expect(grace.locator("#content")).to_contain_text("ada proposed at")
        expect(grace.locator("#content")).to_contain_text("the bank has nothing")
        give(grace, run, "Leave it", "nobody will miss it")
        expect(grace.locator(".messagelist")).to_contain_text("It is the proposal now")
        give(page, run, "Leave it", "then be it so")
        expect(page.locator(".messagelist")).to_contain_text("Your verdict was taken.")
    assert reread(run).resolution == Resolution.LEFT
    page.reload()
    history = page.get_by_role("region", name="History")
    expect(history).to_contain_text("proposed_by: grace")
    expect(history).to_contain_text("then be it so")


def test_a_verdict_on_a_state_that_moved_on_is_explained_and_nothing_typed_is_lost(
    page: Page, grace: Page
) -> None:
    run = interrupted()
    page.goto(resolve_page(run))
    page.get_by_role("radio", name="It happened").check()
    page.get_by_role("textbox", name="Result").fill('{"id": 7}')
    page.get_by_label("Reason").fill("it came at noon")
    give(grace, run, "It did not happen", "the bank has nothing")
    expect(grace.locator(".messagelist")).to_contain_text("Your verdict was taken.")
    page.get_by_role("button", name="Give this verdict").click()
    expect(page.get_by_role("alert").first).to_contain_text("grace decided at")
    expect(page.get_by_role("alert").first).to_contain_text("the bank has nothing")
    expect(page.get_by_label("Reason")).to_have_value("it came at noon")
    expect(page.get_by_role("textbox", name="Result")).to_have_value('{"id": 7}')
    expect(page.get_by_role("button", name="Give this verdict")).to_have_count(0)
    assert reread(run).resolved_by == "grace"


def test_a_decision_on_what_was_decided_is_explained_and_nothing_typed_is_lost(
    page: Page, grace: Page
) -> None:
    run = asking(StepKind.APPROVAL, {"to": "ada"})
    page.goto(answer_page(run))
    page.get_by_label("Note").fill("as agreed with the bank")
    grace.goto(answer_page(run))
    grace.get_by_role("button", name="Deny this call").click()
    expect(grace.locator(".messagelist")).to_contain_text("The call was denied")
    page.get_by_role("button", name="Approve this call").click()
    expect(page.get_by_role("alert").first).to_contain_text("grace answered at")
    expect(page.get_by_label("Note")).to_have_value("as agreed with the bank")
    expect(page.get_by_role("button", name="Approve this call")).to_have_count(0)
    assert answered(run)["approved"] is False


def test_a_retry_of_what_was_retried_is_explained_and_nothing_typed_is_lost(page: Page) -> None:
    run = failed()
    page.goto(page_of(run))
    page.get_by_role("button", name="Retry this run").click()
    page.get_by_label("Reason").fill("the bank is back")
    api.retry(run.uuid, by="grace")
    page.get_by_role("button", name="Yes, retry them").click()
    expect(page.locator(".messagelist")).to_contain_text("only a failed run")
    expect(page.locator(".messagelist")).to_contain_text("What you wrote: the bank is back")
    assert run.history().filter(kind="retried").count() == 1


def test_what_does_not_fit_the_page_is_read_before_it_is_approved(page: Page) -> None:
    run = asking(StepKind.APPROVAL, {"body": "x" * SHOWN_FENCED, "z": "the <b>end"})
    page.goto(answer_page(run))
    page.get_by_label("Note").fill("as agreed")
    page.get_by_role("button", name="Approve this call").click()
    expect(page.locator(".errorlist")).to_contain_text("Read them first")
    expect(page.get_by_label("Note")).to_have_value("as agreed")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Read the whole").click()
    expect(opened.value.locator("body")).to_contain_text('"z": "the <b>end"')
    expect(page.get_by_label("Note")).to_have_value("as agreed")
    page.get_by_label("I have read all of the arguments").check()
    page.get_by_role("button", name="Approve this call").click()
    expect(page.locator(".messagelist")).to_contain_text("The call was approved")
    assert answered(run)["approved"] is True
