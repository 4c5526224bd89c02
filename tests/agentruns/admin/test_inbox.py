from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentruns.enums import EventKind, RunStatus, StepKind, ToolEffect
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step, StepCall
from tests.agentruns.cases import queued, running
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import LIST, page_of, source, words

INBOX = reverse("admin:agentruns_agentrun_inbox")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0},
        "colour": {"enum": ["red", "green", 3]},
        "sure": {"type": "boolean"},
        "more": {"type": "array"},
    },
    "required": ["name", "colour"],
}


def asking(kind: StepKind = StepKind.INPUT, arguments: Any = "sure?", **options: Any) -> AgentRun:
    run, claim = running(**options)
    stored = Payload.of(arguments)
    run.ask(
        claim,
        StepCall("ask", "ask", kind, ToolEffect.READ_ONLY, stored, stored.digest, 1),
    )
    run.suspend(claim)
    return reread(run)


def answer_page(run: AgentRun) -> str:
    step = Step.objects.filter(run=run).latest("pk")
    return reverse("admin:agentruns_agentrun_answer", args=[run.pk, step.pk])


def post(client: Client, run: AgentRun, **given: Any) -> Any:
    url = answer_page(run)
    digest = Step.objects.filter(run=run).latest("pk").digest
    return client.post(url, {"digest": digest, **given})


def answered(run: AgentRun) -> Any:
    result = Step.objects.get(run=run).result
    return None if result is None else result.value


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
    assert post(person, run, decision=decision, note="as agreed").status_code == 302
    assert reread(run).status == RunStatus.QUEUED
    assert answered(run) == {"approved": decision == "approve", "by": "ada", "note": "as agreed"}
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
def test_what_was_answered_is_not_answered_twice(person: Client, kind: StepKind) -> None:
    run = asking(kind)
    given = {"decision": "approve", "answer": '"yes"'}
    post(person, run, **given)
    before = answered(run)
    response = person.post(answer_page(run), {"decision": "deny", "answer": '"no"'}, follow=True)
    assert "This is not asked any more" in response.content.decode()
    assert answered(run) == before


def test_a_question_that_changed_is_not_answered(person: Client) -> None:
    run = asking()
    response = post(person, run, answer='"yes"', digest="of another question")
    assert "or has changed; look at it again" in response.content.decode()
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
