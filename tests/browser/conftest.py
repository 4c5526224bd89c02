from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from .pressing import press

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Milliseconds: browser, server and database may all have to wait for one another.
PATIENCE = 60_000

# What is expected has limits of its own, which a context's do not change.
expect.set_options(timeout=PATIENCE)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave it to the waits to end a test: one that is ended from outside leaves a browser that hangs."""
    item.add_marker(pytest.mark.timeout(900))


def installed_browser() -> str | None:
    """The browser of the system, or the one that CHROMIUM names; Playwright's own is not needed."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture
def browser(
    transactional_db: None, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Browser]:
    executable = installed_browser()
    if executable is None:
        pytest.skip(
            "no browser is installed: install Debian's chromium, or set CHROMIUM to its path"
        )
    # Playwright's event loop runs on this thread, and Django would take the tests for async code.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with sync_playwright() as playwright:
        # Root, which a container's tests are, gets no sandbox.
        sandbox = os.geteuid() != 0
        started = playwright.chromium.launch(
            executable_path=executable,
            chromium_sandbox=sandbox,
            headless=True,
            timeout=2 * PATIENCE,
        )
        yield started
        started.close()


def refusals(message: ConsoleMessage) -> list[str]:
    """What the browser says that the page's Content-Security-Policy has it refuse."""
    return [message.text] if "Content Security Policy" in message.text else []


def new_window(browser: Browser, live_server: Any, **options: Any) -> Page:
    """A window of somebody else: what the browser's other windows keep is not in it."""
    context = browser.new_context(base_url=live_server.url, **options)
    context.set_default_timeout(PATIENCE)
    return context.new_page()


def log_in(window: Page, name: str) -> None:
    """Log in through the form, to the list of runs."""
    window.goto("/admin/agentruns/agentrun/")
    window.fill("#id_username", name)
    window.fill("#id_password", "secret")
    press(window, "Log in")


@pytest.fixture(params=[True, False], ids=["with_javascript", "without_javascript"])
def page(request: pytest.FixtureRequest, browser: Browser, live_server: Any) -> Iterator[Page]:
    """A window of an operator with every permission, logged in through the form."""
    User.objects.create_superuser("ada", password="secret")
    window = new_window(browser, live_server, java_script_enabled=request.param)
    errors: list[str] = []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("console", lambda message: errors.extend(refusals(message)))
    log_in(window, "ada")
    yield window
    window.context.close()
    assert errors == []
