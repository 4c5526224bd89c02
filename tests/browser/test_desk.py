from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from agentruns.enums import RunStatus
from tests.agentruns.cases import interrupted, queued
from tests.harness.runs import reread

pytestmark = pytest.mark.browser


def test_from_the_list_over_the_desk_to_the_write_in_doubt(page: Page) -> None:
    run = interrupted(request="a question", arguments={"to": "<b>Ada</b>"})
    page.reload()
    page.get_by_role("link", name="The operator's desk").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The operator's desk")
    section = page.get_by_role("region", name="Interrupted writes")
    expect(section).to_contain_text("whether it happened is not known")
    section.get_by_role("link", name=str(run.uuid)).click()
    expect(page.get_by_text("The fence stands here.")).to_be_visible()
    arguments = page.locator("details", has_text="arguments")
    expect(arguments.locator("pre")).not_to_be_visible()
    arguments.locator("summary").click()
    expect(arguments.locator("pre")).to_contain_text('"to": "<b>Ada</b>"')


def test_a_run_is_cancelled_after_a_question(page: Page) -> None:
    run = queued()
    page.reload()
    page.get_by_role("link", name=str(run.uuid)).click()
    page.get_by_role("button", name="Cancel this run").click()
    expect(page.locator("#content")).to_contain_text(str(run.uuid))
    assert reread(run).status == RunStatus.QUEUED
    page.get_by_role("button", name="Yes, cancel them").click()
    expect(page.locator(".messagelist")).to_contain_text("Done for 1 run.")
    assert reread(run).status == RunStatus.CANCELLED


def test_runs_are_cancelled_from_the_list(page: Page) -> None:
    run, other = queued(), queued()
    page.reload()
    page.locator(f"input.action-select[value='{run.pk}']").check()
    page.select_option("select[name=action]", "cancel_runs")
    page.get_by_role("button", name="Go").click()
    page.get_by_role("button", name="Yes, cancel them").click()
    expect(page.locator(".messagelist")).to_contain_text("Done for 1 run.")
    assert (reread(run).status, reread(other).status) == (RunStatus.CANCELLED, RunStatus.QUEUED)


def background(page: Page) -> str:
    sentence = page.locator(".agentruns-known")
    return str(sentence.evaluate("element => getComputedStyle(element).backgroundColor"))


def test_it_follows_the_dark_mode(browser: Browser, page: Page) -> None:
    run = interrupted()
    page.goto(f"/admin/agentruns/agentrun/{run.pk}/change/")
    page.emulate_media(color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    assert background(page) != light
