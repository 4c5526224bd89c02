from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from agentruns.enums import StepKind
from tests.agentruns.admin.pages import answer_page, resolve_page
from tests.agentruns.cases import SCHEMA, asking, completed, failed, interrupted, queued, writing

from .conftest import refusals
from .pressing import press

pytestmark = pytest.mark.browser
ADMIN = "/admin/agentruns/agentrun/"


def test_no_page_needs_an_inline_style_or_script(page: Page) -> None:
    # The fixture fails where the browser refused something.
    run, other = interrupted(arguments={"to": "ada"}), queued()
    completed()
    writing()
    urls = ["/admin/agentruns/", ADMIN, f"{ADMIN}desk/", f"{ADMIN}inbox/", f"{ADMIN}dashboard/"]
    urls += [f"{ADMIN}{run.pk}/change/", f"{ADMIN}{other.pk}/change/?follow=1", resolve_page(run)]
    urls += [answer_page(asking(arguments={"schema": SCHEMA}))]
    urls += [answer_page(asking(StepKind.APPROVAL))]
    for url in urls:
        answer = page.goto(url)
        assert answer is not None
        assert answer.headers["content-security-policy"] == "default-src 'self'"
    page.goto(f"{ADMIN}{other.pk}/change/")
    press(page, "Cancel this run")
    page.goto(f"{ADMIN}{failed().pk}/change/")
    press(page, "Retry this run")


def test_a_refusal_is_noticed(browser: Browser, live_server: object) -> None:
    window = browser.new_page(base_url=str(live_server))
    refused: list[str] = []
    window.on("console", lambda message: refused.extend(refusals(message)))
    window.goto("/admin/login/")
    assert not refused
    with window.expect_console_message(lambda message: bool(refusals(message))):
        window.evaluate("document.body.setAttribute('style', 'color: red')")
    assert refused
