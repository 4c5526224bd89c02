from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils.html import escape

from agentruns.enums import Resolution, StepOutcome
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from agentruns.segment import Segment
from tests.agentruns.cases import conf, interrupted, told_too_early, writing
from tests.agentruns.test_redaction import CARD, HIDE
from tests.factories import WRITE, executed

from .conftest import LogIn
from .pages import DESK, page_of, resolve_page, source, words

pytestmark = pytest.mark.django_db(transaction=True)

RESET = f"<b>connection reset</b> by {CARD}"


@pytest.fixture
def operator(log_in: LogIn) -> Client:
    return log_in("view_agentrun", "resolve_agentrun")


def plain(segment: Segment) -> Any:
    def body(key: str) -> Any:
        raise RuntimeError(RESET)

    return segment.step("send", body, effect=WRITE)


async def on_a_loop(segment: Segment) -> Any:
    async def body(key: str) -> Any:
        raise RuntimeError(RESET)

    return await segment.astep("send", body, effect=WRITE)


@pytest.mark.parametrize("agent", [plain, on_a_loop])
def test_whether_a_body_that_raised_left_work_behind_is_not_known(
    operator: Client, agent: Any
) -> None:
    run = executed(agent)
    for page in (DESK, page_of(run), resolve_page(run)):
        text = words(source(operator, page))
        assert f"raised RuntimeError: {RESET}" in text
        assert "whether work that it left behind still goes on, is not known" in text
        assert "its end was not recorded" not in text
        assert "<b>connection" not in source(operator, page)
    text = words(source(operator, resolve_page(run)))
    assert "Work that it left behind may still go on until 2" in text
    assert "has reported nothing since" not in text
    with conf(MAX_STEP_SECONDS=-1):
        assert "counts as over" in words(source(operator, resolve_page(run)))


def test_what_it_raised_is_told_redacted(operator: Client) -> None:
    with conf(REDACT=HIDE):
        run = executed(plain)
    for page in (DESK, page_of(run), resolve_page(run)):
        text = source(operator, page)
        assert CARD not in text
        assert "[card in text]" in text


def test_a_no_that_came_too_early_is_told_as_one(operator: Client) -> None:
    run = told_too_early()
    for page in (DESK, page_of(run), resolve_page(run)):
        text = words(source(operator, page))
        assert "it had not landed, too early to count" in text
        assert "it is asked again from" in text
        assert "it does not know" not in text
    assert "no such key" in words(source(operator, resolve_page(run)))


def test_what_is_closed_is_not_asked_about_again(operator: Client) -> None:
    run = told_too_early()
    run.resolve(Resolution.LEFT, by="ada", reason="so", digest=run.resolution_digest())
    text = words(source(operator, page_of(run)))
    assert "too early to count" in text
    assert "it is asked again" not in text


def test_a_write_whose_body_was_not_seen_to_raise_has_no_end_recorded(operator: Client) -> None:
    run = interrupted()
    assert "its end was not recorded" in words(source(operator, page_of(run)))


FORGED = "gateway timeout. Its destination, when asked, said: it did not land"
TURNED = "\u202e.dnal ton did ti :dias ,deksa nehw ,noitanitsed stI"


@pytest.mark.parametrize("said", [FORGED, TURNED, "</bdi></q>it did not land"])
def test_what_a_stranger_wrote_is_set_apart_from_what_we_say(operator: Client, said: str) -> None:
    run, claim, step = writing(stale=True)
    sweep()
    run.add_late_evidence(claim, step, Ending(StepOutcome.RAISED, None, said))
    shown = escape(said.replace("\u202e", "\\u202e"))
    for page in (DESK, page_of(run), resolve_page(run)):
        text = source(operator, page)
        quote = f'<q class="agentruns-theirs"><bdi>{shown}</bdi></q>'
        assert quote in text
        assert shown not in text.replace(quote, "")
    assert "Its destination has said nothing about it." in source(operator, resolve_page(run))
