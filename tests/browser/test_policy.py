from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from agentruns.enums import StepKind
from tests.agentruns.admin.pages import answer_page, resolve_page
from tests.agentruns.cases import SCHEMA, asking, completed, failed, interrupted, queued, writing

from .conftest import new_window, refusals
from .pressing import press

pytestmark = pytest.mark.browser
ADMIN = "/admin/agentruns/agentrun/"


def test_no_page_needs_an_inline_style_or_script(page: Page) -> None:
    # The fixture fails where the browser refused something.
    run, other = interrupted(arguments={"to": "ada"}), queued()
    completed()
    writing()
    urls = ["/admin/agentruns/", ADMIN, f"{ADMIN}desk/", f"{ADMIN}inbox/", f"{ADMIN}dashboard/"]
    urls += [f"{ADMIN}{run.pk}/change/", resolve_page(run)]
    urls += [answer_page(asking(arguments={"schema": SCHEMA}))]
    urls += [answer_page(asking(StepKind.APPROVAL))]
    for url in urls:
        look_at(page, url)
    page.goto(f"{ADMIN}{other.pk}/change/")
    press(page, "Cancel this run")
    page.goto(f"{ADMIN}{failed().pk}/change/")
    press(page, "Retry this run")
    # The last one: it is read anew after five seconds, while another page may be on its way.
    look_at(page, f"{ADMIN}{queued().pk}/change/?follow=1")


def look_at(page: Page, url: str) -> None:
    answer = page.goto(url)
    assert answer is not None
    assert answer.headers["content-security-policy"] == "default-src 'self'"


def test_a_refusal_is_noticed(browser: Browser, live_server: Any) -> None:
    window = new_window(browser, live_server)
    refused: list[str] = []
    window.on("console", lambda message: refused.extend(refusals(message)))
    window.goto("/admin/login/")
    assert not refused
    with window.expect_console_message(lambda message: bool(refusals(message))):
        window.evaluate("document.body.setAttribute('style', 'color: red')")
    assert refused
