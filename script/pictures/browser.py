"""Look at the pages with Chromium and keep what is seen."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

PATIENCE = 60_000  # milliseconds
NAMES = ("chromium", "chromium-browser", "google-chrome")
ADMIN = "/admin/agentruns/agentrun/"
# Django admin remembers that its side bar was closed; the pictures need the room.
CLOSED_SIDEBAR = "localStorage.setItem('django.admin.navSidebarIsOpen', 'false')"


@contextmanager
def chromium() -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        sys.exit("No browser: install Debian's chromium, or set CHROMIUM to its path.")
    with sync_playwright() as playwright:
        sandbox = os.geteuid() != 0  # root gets none
        browser = playwright.chromium.launch(
            executable_path=program, chromium_sandbox=sandbox, timeout=2 * PATIENCE
        )
        yield browser
        browser.close()


def log_in(browser: Browser, url: str, user: str, password: str, scheme: str = "light") -> Page:
    context = browser.new_context(
        base_url=url,
        viewport={"width": 1180, "height": 760},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    context.add_init_script(CLOSED_SIDEBAR)
    page = context.new_page()
    page.goto("/admin/")
    page.fill("#id_username", user)
    page.fill("#id_password", password)
    with page.expect_navigation():
        page.click("input[type=submit]")
    return page


def take_pictures(page: Page, folder: Path, shown: int) -> list[Path]:
    """Every page that docs/operators.md shows; `shown` is the run whose page is taken."""
    pages = {
        "desk": "desk/",
        "run": f"{shown}/change/",
        "resolve": f"{shown}/resolve/",
        "inbox": "inbox/",
        "dashboard": "dashboard/",
    }
    take(page, ADMIN, file := folder / "list.png", full=False)
    return [
        file,
        *(take(page, ADMIN + path, folder / f"{name}.png") for name, path in pages.items()),
    ]


def take_answer(page: Page, folder: Path) -> Path:
    page.goto(ADMIN + "inbox/")
    with page.expect_navigation():
        page.locator("#content a[href*='/answer/']").first.click()
    return shoot(page, folder / "approve.png")


def take(page: Page, path: str, file: Path, *, full: bool = True) -> Path:
    answer = page.goto(path)
    assert answer is not None
    assert answer.ok, f"{path}: {answer.status}"
    return shoot(page, file, full=full)


def shoot(page: Page, file: Path, *, full: bool = True) -> Path:
    page.screenshot(path=file, full_page=full, animations="disabled")
    return file
