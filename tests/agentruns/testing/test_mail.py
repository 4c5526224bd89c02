from __future__ import annotations

from typing import Any

import django
import pytest
from django.core.mail import EmailMessage

from agentruns.testing import mail
from agentruns.testing.lanes import catch_mail

REFUSING = "tests.agentruns.testing.test_mail.there_is_none"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(mail, "report_effect", lambda name, **facts: names.append(facts["subject"]))
    return names


def send(**using: Any) -> None:
    EmailMessage("Hello", "", "ann@example.org", ["bob@example.org"]).send(**using)


def test_no_mail_leaves_the_crash_kit(settings: Any, reported: list[str]) -> None:
    """Also by a mailer of another name, where Django has those (6.1)."""
    settings.MAILERS = {"default": {"BACKEND": REFUSING}, "news": {"BACKEND": REFUSING}}
    catch_mail()
    send()
    if django.VERSION >= (6, 1):
        send(using="news")
    assert set(reported) == {"Hello"}


@pytest.mark.filterwarnings("ignore")  # what newer Djangos say of the older setting
def test_nor_where_the_project_has_the_older_setting(settings: Any, reported: list[str]) -> None:
    del settings.MAILERS
    settings.EMAIL_BACKEND = REFUSING
    catch_mail()
    send()
    assert reported == ["Hello"]
