from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentruns.admin.payloads import SHOWN_FENCED
from agentruns.enums import EventKind, RunStatus, StepKind
from agentruns.models import AgentRun, Step
from tests.agentruns.cases import SCHEMA, answered, asking, conf, queued
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import LIST, answer_page, page_of, source, words

INBOX = reverse("admin:agentruns_agentrun_inbox")


def post(client: Client, run: AgentRun, **given: Any) -> Any:
    url = answer_page(run)
    digest = Step.objects.filter(run=run).latest("pk").digest
    return client.post(url, {"digest": digest, **given})


@pytest.fixture
def person(log_in: LogIn) -> Client:
    return log_in("view_agentrun", "decide_agentrun")


def test_who_waits_longest_comes_first(person: Client) -> None:
    first, second = asking(), asking(StepKind.APPROVAL, {"to": "ada"})
    queued()
    rows = person.get(INBOX).context["rows"]
    assert [row.run for row in rows] == [first, second]
    page = source(person, INBOX)
    assert answer_page(first) in page
    assert '"to": "ada"' in words(page)
    assert INBOX in source(person, LIST)
    assert INBOX in source(person, page_of(first))


def test_its_queries_do_not_grow(person: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            source(person, INBOX)
        return len(queries)

    asking()
    before = count()
    for _ in range(3):
        asking()
    assert count() == before


@pytest.mark.parametrize(
    ("decision", "kind"), [("approve", EventKind.GRANTED), ("deny", EventKind.DENIED)]
)
def test_a_decision_is_taken_with_its_note(person: Client, decision: str, kind: EventKind) -> None:
    run = asking(StepKind.APPROVAL, {"to": "<b>ada</b>"})
    page = source(person, answer_page(run))
    assert "&lt;b&gt;ada&lt;/b&gt;" in page
    taken = post(person, run, decision=decision, note="as agreed")
    assert taken.status_code == 302
    said = {"approve": "The call was approved", "deny": "The call was denied"}[decision]
    assert said in person.get(INBOX).content.decode()
    assert reread(run).status == RunStatus.QUEUED
    ada = {"by": "ada", "user": str(User.objects.get(username="ada").pk)}
    assert answered(run) == {"approved": decision == "approve", **ada, "note": "as agreed"}
    assert run.history().get(kind=kind).actor == "ada"


def test_neither_yes_nor_no_decides_nothing(person: Client) -> None:
    run = asking(StepKind.APPROVAL)
    response = post(person, run, note="hm")
    assert "Approve or deny." in response.content.decode()
    assert "hm</textarea>" in response.content.decode()
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL


def test_a_decision_on_another_call_is_refused_and_explained(person: Client) -> None:
    run = asking(StepKind.APPROVAL)
    response = post(person, run, decision="approve", digest="of another call", note="kept")
    page = response.content.decode()
    assert "look at it again" in page
    assert "kept</textarea>" in page
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL


@pytest.mark.parametrize("kind", [StepKind.APPROVAL, StepKind.INPUT])
def test_what_was_answered_is_not_answered_twice(
    person: Client, log_in: LogIn, kind: StepKind
) -> None:
    run = asking(kind)
    grace = log_in("view_agentrun", "decide_agentrun", name="grace")
    post(grace, run, decision="approve", answer='"yes"')
    before = answered(run)
    response = post(person, run, decision="deny", answer='"no, <b>"', note="too dear, <b>")
    page = response.content.decode()
    assert "This is not asked any more: grace answered at" in words(page)
    kept = "too dear, &lt;b&gt;" if kind is StepKind.APPROVAL else "no, &lt;b&gt;"
    assert kept in page
    assert "Deny this call" not in page
    assert "Give this answer" not in page
    assert answered(run) == before


def test_the_page_of_what_was_answered_leads_back_to_the_inbox(person: Client) -> None:
    run = asking()
    post(person, run, answer='"yes"')
    response = person.get(answer_page(run), follow=True)
    assert response.redirect_chain == [(INBOX, 302)]
    assert "This is not asked any more" in response.content.decode()


def test_what_a_cancelled_run_asked_is_explained(person: Client) -> None:
    run = asking(StepKind.APPROVAL)
    run.cancel(by="grace")
    page = post(person, run, decision="approve", note="kept").content.decode()
    assert "the run went on without it, or was cancelled" in page
    assert "kept</textarea>" in page


def test_after_a_refusal_the_next_press_is_for_what_is_shown_now(person: Client) -> None:
    run = asking(StepKind.APPROVAL)
    shown = post(person, run, decision="approve", digest="of another call", note="kept")
    assert "look at it again" in shown.content.decode()
    form = shown.context["form"]
    again = {"digest": form["digest"].value(), "note": form["note"].value(), "decision": "approve"}
    assert person.post(answer_page(run), again).status_code == 302
    assert (answered(run)["approved"], answered(run)["note"]) == (True, "kept")


# A call that is too long for the page.

LONG = {"body": "x" * SHOWN_FENCED, "to": "the end \u202e <b>\x00\ud800"}


def test_nobody_approves_by_oversight_what_they_have_not_seen(person: Client) -> None:
    run = asking(StepKind.APPROVAL, LONG)
    page = source(person, answer_page(run))
    assert "Only the beginning is shown" in page
    assert "the end" not in page
    response = post(person, run, decision="approve", note="kept")
    assert response.context["form"].errors["read_whole"]
    assert "kept</textarea>" in response.content.decode()
    assert answered(run) is None
    assert post(person, run, decision="approve", read_whole="on").status_code == 302
    assert answered(run)["approved"] is True


def test_a_long_call_is_denied_without_reading_it(person: Client) -> None:
    run = asking(StepKind.APPROVAL, LONG)
    assert post(person, run, decision="deny").status_code == 302
    assert answered(run)["approved"] is False


def test_the_whole_is_shown_as_text_and_nothing_in_it_is_hidden(person: Client) -> None:
    run = asking(StepKind.APPROVAL, LONG)
    link = re.search(r'href="([^"]*/asked/[^"]*)"', source(person, answer_page(run)))
    assert link is not None
    response = person.get(html.unescape(link[1]))
    text = response.content.decode()
    assert "x" * SHOWN_FENCED in text
    assert "the end \\u202e <b>\\u0000\\ud800" in text
    assert json.loads(text) == LONG
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"


def test_the_whole_of_another_call_is_not_shown_in_its_place(person: Client, log_in: LogIn) -> None:
    run = asking(StepKind.APPROVAL, LONG)
    url = answer_page(run) + "asked/"
    assert person.get(url, {"digest": "of another call"}).status_code == 302
    nobody = log_in("view_agentrun", "view_payload", name="grace")
    digest = Step.objects.get(run=run).digest
    assert nobody.get(url, {"digest": digest}).status_code == 403


def test_a_call_that_is_shown_whole_asks_nothing_more(person: Client) -> None:
    run = asking(StepKind.APPROVAL, {"body": "x" * (SHOWN_FENCED - 100)})
    page = source(person, answer_page(run))
    assert "read_whole" not in page
    assert "x" * (SHOWN_FENCED - 100) in page


def test_a_question_that_changed_is_not_answered(person: Client) -> None:
    run = asking()
    response = post(person, run, answer='"yes"', digest="of another question")
    assert "it has changed; look at it again" in response.content.decode()
    assert reread(run).status == RunStatus.WAITING_FOR_INPUT


@pytest.mark.parametrize("question", ["sure?", None, {"schema": 7}, {"schema": {"type": "array"}}])
def test_any_question_is_answered_with_json(person: Client, question: Any) -> None:
    run = asking(arguments=question)
    response = post(person, run, answer="[1, <")
    assert "This is not JSON" in response.content.decode()
    assert "[1, &lt;</textarea>" in response.content.decode()
    assert post(person, run, answer="[1, 2]").status_code == 302
    assert answered(run) == [1, 2]


def test_a_form_is_made_from_the_schema(person: Client) -> None:
    run = asking(arguments={"question": "who?", "schema": SCHEMA})
    page = source(person, answer_page(run))
    assert "Full name" in page
    response = post(person, run, answer_0="Ada", answer_1="-1", answer_4="[")
    errors = response.context["form"].errors
    assert set(errors) == {"answer_1", "answer_2", "answer_4"}
    assert 'value="Ada"' in response.content.decode()
    good = {"answer_0": "Ada", "answer_1": "36", "answer_2": "3", "answer_3": "on"}
    assert post(person, run, **good, answer_4="[1]").status_code == 302
    assert answered(run) == {"name": "Ada", "age": 36, "colour": 3, "sure": True, "more": [1]}


def test_a_question_is_shown_in_its_own_words(person: Client) -> None:
    asked = {"question": "Who, <b>\u202e and why?", "schema": SCHEMA, "why": "too <short>"}
    run = asking(arguments=asked)
    inbox, page = source(person, INBOX), source(person, answer_page(run))
    shown = r"Who, &lt;b&gt;\u202e and why?"
    assert f">{shown}</p>" in inbox
    assert "schema" not in inbox
    assert f">{shown}</p>" in page
    assert "too &lt;short&gt;</p>" in page
    folded = page.index("<details>"), page.index("</details>")
    assert folded[0] < page.index("&quot;schema&quot;") < folded[1]
    with conf(REDACT="tests.agentruns.admin.test_inbox.hide"):
        for url in (INBOX, answer_page(run)):
            assert "Who, " not in source(person, url)


def hide(what: str, value: Any) -> Any:
    return "hidden" if what == "arguments" else value


def test_an_approval_is_decided_and_a_question_is_answered(person: Client) -> None:
    asking(StepKind.APPROVAL)
    assert ">Decide: " in source(person, INBOX)
    asking(StepKind.INPUT)
    assert ">Answer: " in source(person, INBOX)


def test_the_runs_page_says_that_an_approval_is_waited_for(person: Client) -> None:
    run = asking(StepKind.APPROVAL)
    name = Step.objects.get(run=run).name
    page = words(source(person, page_of(run)))
    assert f"approval of {name}" in page
    assert "Decide on it in the inbox" in page
    row = page[page.rindex(f"approval of {name}") :][:200]
    assert "waiting" in row
    assert "read only" not in row
    post(person, run, decision="deny")
    page = words(source(person, page_of(run)))
    assert "waiting" not in page[page.rindex(f"approval of {name}") :][:200]


def test_what_is_not_required_may_be_left_empty(person: Client) -> None:
    run = asking(arguments={"schema": SCHEMA})
    assert post(person, run, answer_0="Ada", answer_2='"red"').status_code == 302
    assert answered(run) == {"name": "Ada", "colour": "red", "sure": False}


@pytest.mark.parametrize("missing", ["view_agentrun", "decide_agentrun"])
def test_without_the_permission_no_link_and_a_refusal(log_in: LogIn, missing: str) -> None:
    client = log_in(*({"view_agentrun", "decide_agentrun"} - {missing}))
    run = asking(StepKind.APPROVAL, "a secret")
    if missing == "decide_agentrun":
        assert INBOX not in source(client, LIST)
        assert INBOX not in source(client, page_of(run))
    for url in (INBOX, answer_page(run)):
        assert client.get(url).status_code == 403
    assert post(client, run, decision="approve").status_code == 403
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL


def test_a_megabyte_and_markup_are_shown_harmlessly(person: Client) -> None:
    run = asking(arguments="<script>alert(1)</script>\x00\ud800" + "x" * 1_000_000)
    for url in (INBOX, answer_page(run)):
        page = source(person, url)
        assert "<script>alert" not in page
        assert "\x00" not in page
        assert len(page) < 300_000


@pytest.mark.parametrize(
    ("property_", "typed", "given"),
    [
        ({"enum": [None, "", "yes"]}, "null", {"n": None}),
        ({"enum": [None, "", "yes"]}, '""', {"n": ""}),
        ({"enum": [None, "", "yes"]}, "", {}),
        ({"type": "array"}, "null", {"n": None}),
        ({"type": "array"}, " ", {}),
    ],
)
def test_a_null_that_was_chosen_is_an_answer(
    person: Client, property_: Any, typed: str, given: Any
) -> None:
    schema = {"type": "object", "properties": {"n": property_}}
    run = asking(arguments={"question": "?", "schema": schema})
    assert post(person, run, answer_0=typed).status_code == 302
    assert answered(run) == given


@pytest.mark.parametrize("limit", ["Infinity", "-Infinity", "NaN", "1e308", "-5", "0.5"])
@pytest.mark.parametrize("name", ["maxLength", "minLength", "maximum", "minimum"])
def test_a_limit_that_is_none_takes_no_page_down(person: Client, name: str, limit: str) -> None:
    kind = "string" if name.endswith("Length") else "number"
    schema = {"type": "object", "properties": {"n": {"type": kind, name: float(limit)}}}
    run = asking(arguments={"question": "?", "schema": schema})
    assert source(person, answer_page(run))
    assert post(person, run, answer_0="7").status_code in (200, 302)


def test_a_list_of_choices_that_nobody_looks_through_is_not_sent(person: Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": list(range(200_000))}}}
    run = asking(arguments={"question": "?", "schema": schema})
    assert len(source(person, answer_page(run))) < 500_000
    assert post(person, run, answer_0="7").status_code == 302
    assert answered(run) == {"n": 7}
