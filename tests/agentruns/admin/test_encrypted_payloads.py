from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentruns.admin import payloads
from agentruns.enums import Resolution
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from tests.agentruns.cases import asking, completed, interrupted
from tests.agentruns.test_encryption import NEW, damage, keys
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import DESK, LIST, page_of, source, words

INBOX, DASHBOARD = (reverse(f"admin:agentruns_agentrun_{name}") for name in ("inbox", "dashboard"))


@pytest.fixture
def reader(log_in: LogIn) -> Client:
    return log_in("view_agentrun", "view_payload", "decide_agentrun", "resolve_agentrun")


def test_encrypted_payloads_are_shown_to_those_who_may_read_them(
    reader: Client, log_in: LogIn
) -> None:
    with keys(NEW):
        run = completed(request="a question", output={"an": "<answer>"})
        page = source(reader, page_of(run))
        assert "a question" in page
        assert "&quot;an&quot;: &quot;&lt;answer&gt;&quot;" in page
        assert "gAAAAA" not in page
        viewer = log_in("view_agentrun", name="grace")
        assert "a question" not in source(viewer, page_of(run))


def test_plain_and_encrypted_ones_are_shown_side_by_side(reader: Client) -> None:
    run = completed(request="a plain question")
    with keys(NEW):
        AgentRun.objects.filter(pk=run.pk).write_guarded(output=Payload.of("an encrypted answer"))
        page = source(reader, page_of(run))
    assert "a plain question" in page
    assert "an encrypted answer" in page


def test_one_that_cannot_be_read_is_shown_as_such(reader: Client) -> None:
    with keys(NEW):
        run = completed(request="a question")
        damage("agentruns_agentrun", "request")
        damage("agentruns_event", "data")
        text = words(source(reader, page_of(run)))
        assert "It can't be read: the payload is encrypted with a key that is not" in text
        assert "gAAAAA" not in text
    text = words(source(reader, page_of(run)))
    assert "ENCRYPTION_KEYS has no key" in text


def test_a_long_one_is_cut_after_it_was_decrypted(reader: Client) -> None:
    with keys(NEW):
        run = completed(request="begin " + "x" * 20_000 + " end")
        page = source(reader, page_of(run))
    assert "begin xxx" in page
    assert "x end" not in page
    assert "Only the beginning is shown." in page


def test_a_very_long_one_is_not_even_read(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE", 1_000)
    with keys(NEW):
        run = completed(request="x" * 5_000)
        with CaptureQueriesContext(connection) as queries:
            page = source(reader, page_of(run))
    assert "It is too long for this page: it must be read whole." in page
    assert len(queries) < 20


def test_the_write_in_doubt_is_shown_whole(reader: Client) -> None:
    with keys(NEW):
        run = interrupted(arguments={"body": "z" * 90_000})
        assert "z" * 90_000 in source(reader, page_of(run))


def test_a_question_is_shown_and_answered(reader: Client) -> None:
    with keys(NEW):
        run = asking(arguments={"sure": "about 4711?"})
        step = Step.objects.get(run=run)
        url = page_of(run).replace("change", f"answer/{step.pk}")
        assert "about 4711?" in source(reader, url)


@pytest.mark.parametrize("page", ["change", "resolve", "history"])
def test_no_page_breaks_where_nothing_can_be_read(reader: Client, page: str) -> None:
    with keys(NEW):
        doubtful, parked, left = interrupted(), asking(), interrupted()
        left.resolve(Resolution.LEFT, by="ada", reason="?", digest=left.resolution_digest())
    for run in (doubtful, parked, left):
        response = reader.get(page_of(run).replace("change", page), follow=True)
        assert response.status_code == 200, (page, run)
    for url in (LIST, DESK, INBOX, DASHBOARD):
        assert reader.get(url).status_code == 200


def test_a_question_that_cannot_be_read_is_not_answered_by_mistake(reader: Client) -> None:
    with keys(NEW):
        run = asking()
    step = Step.objects.get(run=run)
    url = page_of(run).replace("change", f"answer/{step.pk}")
    assert "It can't be read" in words(source(reader, url))
    response = reader.post(url, {"digest": step.digest, "answer": '"yes"'})
    assert response.status_code == 200
    assert reread(run).status == "waiting_for_input"
