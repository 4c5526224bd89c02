from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from agentruns import registry
from agentruns.admin.jsonfield import JsonText
from agentruns.admin.wording import moment
from agentruns.enums import EventKind, Resolution, RunStatus, StepKind, StepOutcome, StepState
from agentruns.exceptions import PayloadError
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from agentruns.registry import RegisteredAgent
from agentruns.tasks import execute
from tests.agentruns.cases import completed, failed, interrupted, queued, reaped, writing
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import DESK, messages, page_of, resolve_page, source, words


def post(client: Client, run: AgentRun, verdict: Resolution, **given: Any) -> Any:
    """Read the page, then press its button."""
    digest = client.get(resolve_page(run)).context["form"].initial["digest"]
    data = {"digest": digest, "verdict": verdict.value, "reason": "asked the bank", **given}
    return client.post(resolve_page(run), data)


@pytest.fixture
def operator(log_in: LogIn) -> Client:
    return log_in("view_agentrun", "view_payload", "resolve_agentrun")


def test_before_the_button_it_says_what_a_verdict_does(operator: Client) -> None:
    run = interrupted(arguments={"to": "ada"})
    text = words(source(operator, resolve_page(run)))
    for said in (
        "0 recorded steps are replayed",
        "If it did not happen: send is executed again",
        "Its former worker counts as gone",
        "Its former worker has reported nothing since",
        "Its destination has said nothing",
        '"to": "ada"',
    ):
        assert said in text


def test_it_happened_records_the_result(operator: Client) -> None:
    run = interrupted()
    assert post(operator, run, Resolution.HAPPENED, result='{"id": 7}').status_code == 302
    step = Step.objects.get(run=run)
    assert reread(run).status == RunStatus.QUEUED
    assert step.result is not None
    assert (step.state, step.result.value) == (StepState.RECORDED, {"id": 7})
    event = run.history().get(kind=EventKind.RESOLVED)
    assert event.data is not None
    assert (event.actor, event.data.value["why"]) == ("ada", "asked the bank")


def test_it_did_not_happen_executes_it_again(operator: Client) -> None:
    run = interrupted()
    assert post(operator, run, Resolution.DID_NOT_HAPPEN).status_code == 302
    assert reread(run).status == RunStatus.QUEUED
    assert Step.objects.get(run=run).state == StepState.NOT_APPLIED
    execute(str(run.uuid))
    assert reread(run).status != RunStatus.QUEUED


def test_it_is_left_with_a_reason(operator: Client) -> None:
    run = interrupted()
    assert post(operator, run, Resolution.LEFT).status_code == 302
    assert (reread(run).status, reread(run).resolution) == (RunStatus.FAILED, Resolution.LEFT)


@pytest.mark.parametrize("verdict", Resolution)
def test_every_verdict_needs_a_reason(operator: Client, verdict: Resolution) -> None:
    run = interrupted()
    response = post(operator, run, verdict, result="7", reason="  ")
    assert response.context["form"].errors["reason"]
    assert 'name="result"' in response.content.decode()
    assert reread(run).status == RunStatus.FAILED


def test_nothing_typed_is_lost_on_an_error(operator: Client) -> None:
    run = interrupted()
    response = post(operator, run, Resolution.HAPPENED, result="  {'id': <b>", reason="said Bob")
    page = response.content.decode()
    assert "This is not JSON" in page
    assert "{&#x27;id&#x27;: &lt;b&gt;" in page
    assert "said Bob</textarea>" in page
    assert reread(run).status == RunStatus.FAILED


@pytest.mark.parametrize("text", ["NaN", "{", "[" * 5000, "9" * 5000, "", "\x00"])
def test_what_is_no_json_is_refused(operator: Client, text: str) -> None:
    run = interrupted()
    response = post(operator, run, Resolution.HAPPENED, result=text)
    assert response.context["form"].errors["result"]
    assert reread(run).status == RunStatus.FAILED


@pytest.mark.parametrize(("text", "value"), [("null", None), (' "a" ', "a"), ("[1]", [1])])
def test_json_is_decoded(text: str, value: Any) -> None:
    assert JsonText().clean(text) == value


def test_it_happened_with_null_is_a_result(operator: Client) -> None:
    run = interrupted()
    assert post(operator, run, Resolution.HAPPENED, result="null").status_code == 302


def never_so(step: str, kind: StepKind, value: Any) -> Any:
    raise PayloadError(f"{step} can't have returned this: <b> is no number")


def test_a_result_that_the_step_can_not_have_returned_is_shown_beside_its_field(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = RegisteredAgent(
        "strict",
        lambda segment: None,
        encode_result=never_so,
        result_schema=lambda step, kind: {"type": "integer", "title": "<b>"},
    )
    monkeypatch.setattr(registry, "_agents", {"strict": strict, **registry._agents})
    run = interrupted(agent="strict")
    page = source(operator, resolve_page(run))
    assert "The result is held to what send declares" in words(page)
    assert "&quot;title&quot;: &quot;&lt;b&gt;&quot;" in page
    response = post(operator, run, Resolution.HAPPENED, result='  "<i>"', reason="said Bob")
    errors = response.context["form"].errors
    assert list(errors) == ["result"]
    page = response.content.decode()
    assert "&lt;b&gt; is no number" in page
    assert "  &quot;&lt;i&gt;&quot;</textarea>" in page
    assert "said Bob</textarea>" in page
    assert reread(run).status == RunStatus.FAILED


def test_it_says_where_nobody_can_check_a_result(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = interrupted()
    assert "any JSON is taken as it is, and nobody checks it" in words(
        source(operator, resolve_page(run))
    )
    monkeypatch.setattr(registry, "_agents", {})
    assert "'it happened' is refused here" in words(source(operator, resolve_page(run)))
    response = post(operator, run, Resolution.HAPPENED, result="7", reason="said Bob")
    assert "no agent is registered as" in response.content.decode()
    assert "said Bob</textarea>" in response.content.decode()


def test_while_the_former_worker_may_act_it_asks_for_a_confirmation(operator: Client) -> None:
    run = reaped()
    until = moment(run.former_worker_may_act_until())
    said = words(source(operator, resolve_page(run)))
    assert f"Its former worker may still act until {until}" in said
    response = post(operator, run, Resolution.DID_NOT_HAPPEN)
    assert f"wait until {until}" in str(response.context["form"].errors["worker_may_act"])
    assert reread(run).status == RunStatus.FAILED
    assert post(operator, run, Resolution.DID_NOT_HAPPEN, worker_may_act="on").status_code == 302
    assert reread(run).status == RunStatus.QUEUED


def test_evidence_that_came_meanwhile_refuses_the_verdict(operator: Client) -> None:
    run, claim, step = writing(stale=True)
    sweep()
    digest = operator.get(resolve_page(run)).context["form"].initial["digest"]
    landed = Ending(StepOutcome.RETURNED, Payload.of({"id": 7}))
    AgentRun.objects.get(pk=run.pk).add_late_evidence(claim, step, landed)
    data = {"digest": digest, "verdict": "left", "reason": "gave up"}
    response = operator.post(resolve_page(run), data)
    text = words(response.content.decode())
    assert "has changed since it was shown: look at it again" in text
    assert "that it landed; nobody has confirmed that" in text
    assert "gave up" in text
    assert reread(run).resolution == ""


def test_two_operators_do_not_both_decide(operator: Client, log_in: LogIn) -> None:
    grace = log_in("view_agentrun", "resolve_agentrun", name="grace")
    run = interrupted()
    digest = grace.get(resolve_page(run)).context["form"].initial["digest"]
    assert post(operator, run, Resolution.LEFT).status_code == 302
    data = {"digest": digest, "verdict": "did_not_happen", "reason": "no mail came"}
    assert "look at it again" in grace.post(resolve_page(run), data).content.decode()
    assert (reread(run).status, reread(run).resolved_by) == (RunStatus.FAILED, "ada")


def test_a_verdict_on_a_run_that_went_on_is_explained_and_nothing_typed_is_lost(
    operator: Client, log_in: LogIn
) -> None:
    grace = log_in("view_agentrun", "resolve_agentrun", name="grace")
    run = interrupted()
    digest = grace.get(resolve_page(run)).context["form"].initial["digest"]
    post(operator, run, Resolution.DID_NOT_HAPPEN)
    typed = {"verdict": "happened", "result": '{"id": "<b>"}', "reason": "it came at noon"}
    page = grace.post(resolve_page(run), {"digest": digest, **typed}).content.decode()
    assert "ada decided at" in words(page)
    assert "it did not happen. The reason: asked the bank" in words(page)
    assert "it came at noon</textarea>" in page
    assert "&lt;b&gt;" in page
    assert "Give this verdict" not in page


def test_the_page_of_a_run_that_went_on_leads_to_the_run(operator: Client) -> None:
    run = interrupted()
    post(operator, run, Resolution.DID_NOT_HAPPEN)
    response = operator.get(resolve_page(run), follow=True)
    assert response.redirect_chain == [(page_of(run), 302)]
    assert any("here any more: ada decided" in said for said in messages(response))


def test_after_a_refusal_the_next_press_is_for_what_is_shown_now(operator: Client) -> None:
    run = interrupted()
    stale = {"digest": "of yesterday", "verdict": "left", "reason": "gave up"}
    shown = operator.post(resolve_page(run), stale).context["form"]
    again = {name: shown[name].value() for name in ("digest", "verdict", "reason")}
    assert operator.post(resolve_page(run), again).status_code == 302
    assert reread(run).resolution == Resolution.LEFT


@pytest.mark.parametrize("make", [queued, failed, completed])
def test_a_run_without_a_write_in_doubt_offers_no_verdict(operator: Client, make: Any) -> None:
    run = make()
    assert resolve_page(run) not in source(operator, page_of(run))
    assert operator.get(resolve_page(run)).status_code == 302


@pytest.mark.parametrize("missing", ["view_agentrun", "resolve_agentrun"])
def test_without_the_permission_no_button_and_a_refusal(log_in: LogIn, missing: str) -> None:
    client = log_in(*({"view_agentrun", "resolve_agentrun"} - {missing}))
    run = interrupted()
    if missing == "resolve_agentrun":
        assert resolve_page(run) not in source(client, page_of(run))
    assert client.get(resolve_page(run)).status_code == 403
    data = {"digest": run.resolution_digest(), "verdict": "left", "reason": "x"}
    assert client.post(resolve_page(run), data).status_code == 403
    assert reread(run).resolution == ""


def test_no_payload_is_shown_without_its_permission(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "resolve_agentrun")
    run = interrupted(arguments="a secret")
    assert "a secret" not in source(client, resolve_page(run))


def test_the_runs_page_leads_there_and_nothing_decides_in_one_click(operator: Client) -> None:
    run = interrupted()
    assert resolve_page(run) in source(operator, page_of(run))
    for url in (DESK, page_of(run)):
        assert 'name="verdict"' not in source(operator, url)


def test_a_megabyte_and_markup_are_shown_harmlessly(operator: Client) -> None:
    run = interrupted(arguments="<script>alert(1)</script>\x00" + "x" * 1_000_000)
    page = source(operator, resolve_page(run))
    assert "<script>alert" not in page
    assert "\x00" not in page
    assert len(page) < 300_000


@pytest.mark.parametrize("result", ["1e999", "NaN", '{"a": 1, "a": 2}'])
def test_a_result_that_would_be_altered_is_refused(operator: Client, result: str) -> None:
    run = interrupted()
    response = post(operator, run, Resolution.HAPPENED, result=result)
    assert response.context["form"].errors["result"]
    assert reread(run).status == RunStatus.FAILED


@pytest.mark.parametrize("verdict", [Resolution.DID_NOT_HAPPEN, Resolution.LEFT])
def test_a_result_of_what_did_not_happen_is_refused(operator: Client, verdict: Resolution) -> None:
    run = interrupted()
    response = post(operator, run, verdict, result="7")
    assert "Only what happened has a result" in str(response.context["form"].errors["result"])
    assert reread(run).status == RunStatus.FAILED
    assert reread(run).resolution == ""


def test_a_step_says_that_a_verdict_settled_it(operator: Client) -> None:
    run = interrupted()
    post(operator, run, Resolution.HAPPENED, result="7")
    page = operator.get(f"/admin/agentruns/agentrun/{run.pk}/change/").content.decode()
    assert "recorded: by a verdict" in page
    assert "returned a value" not in page


def test_it_says_that_the_destination_will_be_asked(operator: Client) -> None:
    run = interrupted()
    step = Step.objects.get(run=run)
    verifier = registry.Verifier(lambda doubt: registry.Answer.unknown())
    registry._agents[run.agent] = registry.RegisteredAgent(
        run.agent, lambda segment: None, verifiers={step.name: verifier}
    )
    page = operator.get(resolve_page(run)).content.decode()
    assert "will be asked by the next worker" in page
