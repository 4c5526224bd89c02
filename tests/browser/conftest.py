from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from .pressing import press

NAMES = ("chromium", "chromium-browser", "google-chrome")


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
            executable_path=executable, chromium_sandbox=sandbox, headless=True
        )
        yield started
        started.close()


def refusals(message: ConsoleMessage) -> list[str]:
    """What the browser says that the page's Content-Security-Policy has it refuse."""
    return [message.text] if "Content Security Policy" in message.text else []


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
    context = browser.new_context(base_url=live_server.url, java_script_enabled=request.param)
    context.set_default_timeout(20_000)
    window = context.new_page()
    errors: list[str] = []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("console", lambda message: errors.extend(refusals(message)))
    log_in(window, "ada")
    yield window
    context.close()
    assert errors == []
