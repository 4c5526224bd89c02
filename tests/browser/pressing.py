from __future__ import annotations

from playwright.sync_api import Page


def press(page: Page, button: str) -> None:
    """Press a button, and wait for the page that answers: a click ends while that is half there."""
    with page.expect_navigation():
        page.get_by_role("button", name=button).click()
