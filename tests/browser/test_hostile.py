"""In a real browser, and without a policy that would stop it: nothing that a stranger wrote runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from agentruns import registry
from agentruns.models import AgentRun
from tests.agentruns.admin.pages import answer_page, page_of, resolve_page
from tests.agentruns.admin.test_permissions import asked_page
from tests.agentruns.cases import conf
from tests.agentruns.hostile import MARKUP, TEXT, hostile_runs

from .conftest import log_in, new_window

pytestmark = pytest.mark.browser
ADMIN = "/admin/agentruns/agentrun/"


@pytest.fixture
def runs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, AgentRun]:
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
    return hostile_runs()


@pytest.fixture
def trusting(browser: Browser, live_server: Any) -> Iterator[Page]:
    """A window that executes what a page holds, whatever the page's policy says."""
    User.objects.create_superuser("ada", password="secret")
    window = new_window(browser, live_server, bypass_csp=True)
    log_in(window, "ada")
    yield window
    window.context.close()


def unharmed(page: Page) -> bool:
    # An image that is not there calls its handler when the browser has given up on it.
    page.wait_for_load_state("networkidle")
    return bool(page.evaluate("window.harmed === undefined"))


def test_the_markup_would_run_where_it_is_not_escaped(trusting: Page) -> None:
    trusting.goto(ADMIN)
    trusting.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", MARKUP)
    trusting.wait_for_function("window.harmed === 1")


def test_nothing_runs_on_any_page(trusting: Page, runs: dict[str, AgentRun]) -> None:
    urls = [ADMIN, *(f"{ADMIN}{name}/" for name in ("desk", "inbox", "dashboard"))]
    urls += [page_of(run) for run in runs.values()]
    urls += [resolve_page(runs[name]) for name in ("doubtful", "late", "left")]
    urls += [answer_page(runs["approval"]), answer_page(runs["question"])]
    urls += [asked_page(runs["approval"])]
    for url in urls:
        trusting.goto(url)
        assert unharmed(trusting), url


def test_what_is_folded_is_seen_when_it_is_unfolded(
    trusting: Page, runs: dict[str, AgentRun]
) -> None:
    trusting.goto(page_of(runs["doubtful"]))
    for summary in trusting.locator("#content details summary").all():
        summary.click()
    expect(trusting.locator("#content pre").first).to_contain_text("<img src=x onerror=")
    assert unharmed(trusting)


def test_what_was_typed_does_not_run_when_it_is_shown_again(
    trusting: Page, runs: dict[str, AgentRun]
) -> None:
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        trusting.goto(resolve_page(runs["doubtful"]))
        trusting.get_by_role("radio", name="It happened").check()
        trusting.get_by_role("textbox", name="Result").fill(MARKUP)
        trusting.get_by_label("Reason").fill(MARKUP)
        trusting.get_by_role("button", name="Give this verdict").click()
        expect(trusting.locator(".errorlist")).to_contain_text("This is not JSON")
        expect(trusting.get_by_label("Reason")).to_have_value(MARKUP)
        assert unharmed(trusting)
        trusting.get_by_role("radio", name="Leave it").check()
        trusting.get_by_role("textbox", name="Result").fill("")
        trusting.get_by_role("button", name="Give this verdict").click()
        expect(trusting.locator("#content")).to_contain_text("ada proposed at")
        assert unharmed(trusting)


def test_a_note_in_the_history_does_not_run(trusting: Page, runs: dict[str, AgentRun]) -> None:
    run = runs["approval"]
    trusting.goto(answer_page(run))
    trusting.get_by_label("Note").fill(TEXT.replace("\r", ""))
    trusting.get_by_role("button", name="Deny this call").click()
    expect(trusting.locator(".messagelist")).to_contain_text("The call was denied")
    trusting.goto(page_of(run))
    expect(trusting.locator("#content")).to_contain_text("<img src=x onerror=")
    assert unharmed(trusting)
