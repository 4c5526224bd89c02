from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, expect

from tests.agentruns.cases import completed, interrupted

from .conftest import new_window

pytestmark = pytest.mark.browser


def test_an_operator_reads_the_pages_in_german(browser: Browser, live_server: Any) -> None:
    User.objects.create_superuser("ada", password="secret")
    run = interrupted()
    completed()
    window = new_window(browser, live_server, locale="de-DE")
    window.goto("/admin/agentruns/agentrun/desk/")
    window.fill("#id_username", "ada")
    window.fill("#id_password", "secret")
    window.click("input[type=submit]")
    expect(window.get_by_role("heading", level=1)).to_have_text("Der Leitstand")
    expect(window.locator("html")).to_have_attribute("lang", "de")
    section = window.get_by_role("region", name="Unterbrochene Schreibvorgänge")
    expect(section).to_contain_text("Ob es geschehen ist, ist nicht bekannt.")
    section.get_by_role("link", name=str(run.uuid)).click()
    expect(window.locator("#content")).to_contain_text("Hier steht die Sperre.")
    window.get_by_role("link", name="Über diesen Schreibvorgang entscheiden").click()
    expect(window.get_by_role("radio", name="Es ist nicht geschehen")).to_be_visible()
    window.get_by_role("link", name="Die Übersicht").click()
    expect(window.get_by_role("img", name="gescheitert: 1 insgesamt")).to_be_visible()
