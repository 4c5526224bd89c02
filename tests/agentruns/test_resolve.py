from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agentruns import api, registry
from agentruns.conf import conf
from agentruns.enums import EventKind, Resolution, RunStatus, StepOutcome, StepState
from agentruns.exceptions import PayloadError, TransitionRefused, UnknownAgent
from agentruns.failures import classify
from agentruns.fields import Payload
from agentruns.guard import from_now
from agentruns.models import AgentRun, Event, Step
from agentruns.models.step import Ending
from agentruns.registry import RegisteredAgent
from tests.factories import (
    REPEATABLE,
    WRITE,
    call,
    claim,
    dead_lettered_write,
    expire,
    fail,
    fenced,
    history,
    reap,
    reread,
    returned,
    running,
    snapshot,
    step_of,
    with_status,
)

pytestmark = pytest.mark.django_db

HAPPENED, DID_NOT, LEFT = Resolution.HAPPENED, Resolution.DID_NOT_HAPPEN, Resolution.LEFT


def resolve(run: AgentRun, verdict: Resolution, **options: Any) -> None:
    options = {"by": "an operator", "reason": "asked the bank", **options}
    options.setdefault("digest", reread(run).resolution_digest())
    if verdict is HAPPENED:
        options.setdefault("result", Payload.of({"id": 7}))
    if verdict is DID_NOT:
        options.setdefault("worker_may_act_confirmed", True)
    run.resolve(verdict, **options)


def test_it_happened_records_the_result_and_lets_the_run_go_on() -> None:
    run, step = dead_lettered_write()
    resolve(run, HAPPENED)
    row, stored = reread(run), step_of(run)
    assert (row.status, row.pending_effect, row.pending_step_id) == ("queued", "", None)
    assert (row.termination_reason, row.finished_at, row.requeue_count) == ("", None, 0)
    assert (row.error_class, row.error_message, row.resolution) == ("", "", "")
    assert (row.resolved_by, row.resolved_at is not None) == ("an operator", True)
    assert (stored.pk, stored.state, stored.recorded_key) == (step.pk, "recorded", "write")
    assert stored.result is not None
    assert stored.result.value == {"id": 7}
    assert history(run)[-2:] == ["dead_lettered", "resolved"]


def test_it_did_not_happen_lets_the_write_be_executed_again() -> None:
    run, step = dead_lettered_write()
    resolve(run, DID_NOT)
    row, stored = reread(run), step_of(run)
    assert (row.status, row.pending_effect) == ("queued", "")
    assert (stored.state, stored.recorded_key) == (StepState.NOT_APPLIED, None)
    _run, held = claim(run)
    again = run.mark_pending_effect(held, call())
    assert (again.attempt, again.idempotency_key) == (2, step.idempotency_key)


def test_leaving_it_keeps_the_failure_and_the_fence() -> None:
    run, step = dead_lettered_write()
    resolve(run, LEFT)
    row = reread(run)
    assert (row.status, row.termination_reason) == ("failed", "interrupted_write")
    assert (row.pending_effect, row.pending_step_id) == (WRITE, step.pk)
    assert row.resolution == LEFT
    assert not AgentRun.objects.unresolved().exists()
    assert AgentRun.objects.fenced().exists()
    with pytest.raises(TransitionRefused):
        run.retry(by="somebody")


def test_what_was_left_can_be_resolved_later() -> None:
    run, _step = dead_lettered_write()
    resolve(run, LEFT)
    resolve(run, HAPPENED)
    assert reread(run).status == "queued"


@pytest.mark.parametrize("verdict", Resolution)
def test_every_verdict_is_bound_to_the_state_that_was_shown(verdict: Resolution) -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="look at it again"):
        resolve(run, verdict, digest="of yesterday")
    assert snapshot(run) == before


@pytest.mark.parametrize("verdict", Resolution)
def test_evidence_that_arrived_after_the_page_was_drawn_refuses_a_verdict(
    verdict: Resolution,
) -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    shown = reread(run).resolution_digest()
    run.add_late_evidence(held, step, returned({"id": 7}))
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="look at it again"):
        resolve(run, verdict, digest=shown)
    assert snapshot(run) == before


def test_evidence_that_the_body_raised_changes_the_digest_too() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    shown = reread(run).resolution_digest()
    run.add_late_evidence(held, step, Ending(StepOutcome.RAISED, None, "ConnectionResetError"))
    assert reread(run).resolution_digest() != shown


def test_a_verdict_given_twice_is_given_once() -> None:
    run, _step = dead_lettered_write()
    shown = reread(run).resolution_digest()
    resolve(run, HAPPENED, digest=shown)
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        resolve(run, DID_NOT, digest=shown)
    assert snapshot(run) == before


def test_the_digest_of_another_dead_letter_of_the_same_run_does_not_serve() -> None:
    run, _step = dead_lettered_write()
    shown = reread(run).resolution_digest()
    resolve(run, DID_NOT)
    _run, held = claim(run)
    run.mark_pending_effect(held, call())
    expire(run)
    reap(run)
    with pytest.raises(TransitionRefused):
        resolve(run, HAPPENED, digest=shown)


def test_it_happened_needs_a_result() -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="result"):
        resolve(run, HAPPENED, result=None)
    assert snapshot(run) == before


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("verdict", Resolution)
def test_a_run_without_an_interrupted_write_is_not_resolved(
    verdict: Resolution, status: RunStatus
) -> None:
    run = with_status(status)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="no interrupted write"):
        resolve(run, verdict)
    assert snapshot(run) == before


def test_a_write_in_flight_is_not_resolved() -> None:
    run, _held, _step = fenced()
    before = snapshot(run)
    with pytest.raises(TransitionRefused):
        resolve(run, HAPPENED)
    assert snapshot(run) == before


def test_a_run_without_a_request_is_not_put_back() -> None:
    run, _step = dead_lettered_write(request=None)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="no stored request"):
        resolve(run, HAPPENED)
    assert snapshot(run) == before
    resolve(run, LEFT)


def test_a_synchronous_run_goes_on_in_the_background() -> None:
    run, _step = dead_lettered_write(mode="synchronous")
    resolve(run, HAPPENED)
    assert reread(run).mode == "queued"


@pytest.mark.parametrize("by", ["x" * 201, "\x00"])
def test_a_name_that_cannot_be_kept_is_refused(by: str) -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with pytest.raises(PayloadError):
        resolve(run, LEFT, by=by)
    assert snapshot(run) == before


def test_a_reason_of_any_text_is_kept() -> None:
    run, _step = dead_lettered_write()
    resolve(run, LEFT, reason="NUL \x00 and \ud800")
    event = Event.objects.filter(run=run).latest("pk")
    assert event.data is not None
    assert event.data.value["why"] == "NUL � and \\ud800"


@pytest.mark.parametrize("verdict", Resolution)
@pytest.mark.parametrize("missing", [{"reason": ""}, {"reason": " \n"}, {"by": " "}])
def test_a_verdict_names_who_gives_it_and_how_they_know(
    verdict: Resolution, missing: dict[str, str]
) -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="reason"):
        resolve(run, verdict, **missing)
    assert snapshot(run) == before


# 'It did not happen', while the former worker may still be in its write.


def test_it_did_not_happen_is_refused_while_the_former_worker_may_act() -> None:
    run, _step = dead_lettered_write()
    assert run.former_worker_may_act()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="may still be inside"):
        resolve(run, DID_NOT, worker_may_act_confirmed=False)
    assert snapshot(run) == before
    resolve(run, HAPPENED)


def test_the_former_worker_is_gone_after_the_longest_step() -> None:
    run, _step = dead_lettered_write()
    Event.objects.filter(run=run).update(at=from_now(-100_000))
    assert not run.former_worker_may_act()
    resolve(run, DID_NOT, worker_may_act_confirmed=False)
    assert reread(run).status == "queued"


def test_a_worker_that_settled_its_own_segment_is_gone() -> None:
    run, held, step = fenced()
    run.recover(held, *failure(), uncertain=step)
    assert reread(run).termination_reason == "interrupted_write"
    assert not run.former_worker_may_act()
    resolve(run, DID_NOT, worker_may_act_confirmed=False)


def second_attempt_that_ended(run: AgentRun) -> AgentRun:
    """The write executed again, by a worker that is known to have ended."""
    resolve(run, DID_NOT)
    row, held = claim(reread(run), "queue:here:2:bb")
    row.recover(held, *failure(), uncertain=row.mark_pending_effect(held, call()))
    return reread(run)


def test_the_worker_of_an_earlier_attempt_may_act_in_it() -> None:
    """Stopped in its body, it wakes up when the second attempt has long ended."""
    run, _step = dead_lettered_write()
    run = second_attempt_that_ended(run)
    assert run.former_worker_may_act()
    with pytest.raises(TransitionRefused, match="may still be inside"):
        resolve(run, DID_NOT, worker_may_act_confirmed=False)
    Event.objects.filter(run=run, epoch=1).update(at=from_now(-100_000))
    assert not run.former_worker_may_act()


def test_they_may_act_until_the_last_of_them_counts_as_gone() -> None:
    run, _step = dead_lettered_write()
    resolve(run, DID_NOT)
    row, held = claim(reread(run), "queue:here:2:bb")
    row.mark_pending_effect(held, call())
    expire(row)
    reap(row)
    Event.objects.filter(run=run, epoch=1).update(at=from_now(-10))
    last = Event.objects.get(run=run, kind=EventKind.DEAD_LETTERED, epoch=2)
    until = reread(run).former_worker_may_act_until()
    assert until == last.at + timedelta(seconds=conf.MAX_STEP_SECONDS)


def test_the_end_of_a_later_worker_says_nothing_about_an_earlier_one() -> None:
    """Where the history of the earlier one was deleted."""
    run, _step = dead_lettered_write()
    run = second_attempt_that_ended(run)
    Event.objects.filter(run=run, epoch=1, kind=EventKind.DEAD_LETTERED).delete()
    assert run.former_worker_may_act()


def test_a_run_that_nobody_gave_up_has_no_former_worker() -> None:
    run, _held, _step = fenced()
    assert not run.former_worker_may_act()


@pytest.mark.parametrize("verdict", [HAPPENED, DID_NOT])
def test_a_persons_verdict_begins_a_new_budget(verdict: Resolution) -> None:
    run, _step = dead_lettered_write()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=2)
    resolve(run, verdict)
    assert reread(run).requeue_count == 0


@pytest.mark.parametrize(("verdict", "spent"), [(HAPPENED, 2), (DID_NOT, 3)])
def test_a_destinations_verdict_goes_on_with_the_budget(verdict: Resolution, spent: int) -> None:
    run, _step = dead_lettered_write()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=2)
    resolve(run, verdict, by_destination=True)
    assert reread(run).requeue_count == spent


def test_a_destination_may_say_that_it_happened_when_the_budget_is_spent() -> None:
    run, _step = dead_lettered_write()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=conf.MAX_REQUEUES)
    with pytest.raises(TransitionRefused, match="spent its retries"):
        resolve(run, DID_NOT, by_destination=True)
    resolve(run, HAPPENED, by_destination=True)
    assert reread(run).status == "queued"


@pytest.mark.parametrize(
    ("outcome", "may_act"),
    [
        (StepOutcome.RAISED, True),
        (StepOutcome.NOT_STARTED, False),
        (StepOutcome.EFFECT_NOT_APPLIED, False),
    ],
)
def test_an_earlier_attempt_that_reported_its_end_late(outcome: StepOutcome, may_act: bool) -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    run.add_late_evidence(held, step, Ending(outcome, None, "late"))
    assert second_attempt_that_ended(run).former_worker_may_act() is may_act


def failure() -> tuple[Any, BaseException]:
    error = ConnectionResetError("in the middle")
    return classify(error), error


def test_the_attempt_says_what_its_body_raised() -> None:
    run, held, step = fenced()
    run.recover(held, *failure(), uncertain=step)
    stored = step_of(run)
    assert (stored.state, stored.error) == (StepState.UNCERTAIN, "in the middle")


def test_a_fence_without_any_attempt_can_be_left_or_denied() -> None:
    """Somebody set the column, or deleted the step, by hand."""
    run, step = dead_lettered_write()
    Step.objects.filter(pk=step.pk).delete()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="attempt"):
        resolve(run, HAPPENED)
    assert snapshot(run) == before
    resolve(run, DID_NOT)
    assert reread(run).status == "queued"


# Retry.


def test_a_retry_begins_with_a_new_budget() -> None:
    run, held = running()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=3)
    fail(run, held, ConnectionResetError("gone"))
    assert reread(run).termination_reason == "retries_exhausted"
    run.retry(by="an operator", reason="it is back")
    row = reread(run)
    assert (row.status, row.requeue_count, row.finished_at) == ("queued", 0, None)
    assert (row.termination_reason, row.error_class, row.error_message) == ("", "", "")
    assert history(run)[-1] == "retried"


def test_a_retry_clears_the_fence_of_an_idempotent_write() -> None:
    run, held, _step = fenced(REPEATABLE)
    fail(run, held)
    assert reread(run).pending_effect == REPEATABLE
    run.retry(by="an operator")
    row = reread(run)
    assert (row.pending_effect, row.pending_step_id) == ("", None)


def test_an_uncertain_write_is_not_retried() -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="certain"):
        run.retry(by="an operator")
    assert snapshot(run) == before


def test_a_run_without_a_request_is_not_retried() -> None:
    run, held = running(request=None)
    fail(run, held)
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="no stored request"):
        run.retry(by="an operator")
    assert snapshot(run) == before


class TestThroughTheApi:
    def test_a_result_is_encoded_as_the_agent_would_have_recorded_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, _step = dead_lettered_write(agent="encoding")
        encoding = RegisteredAgent(
            "encoding", lambda segment: None, encode_result=lambda *said: list(map(str, said))
        )
        monkeypatch.setattr(registry, "_agents", {"encoding": encoding})
        self.resolve(run, HAPPENED, result={"id": 7})
        stored = step_of(run)
        assert stored.result is not None
        assert stored.result.value == ["write", "call", "{'id': 7}"]
        assert reread(run).status == RunStatus.QUEUED

    def test_none_is_a_result(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run, _step = dead_lettered_write(agent="plain")
        plain = RegisteredAgent("plain", lambda segment: None)
        monkeypatch.setattr(registry, "_agents", {"plain": plain})
        with pytest.raises(TransitionRefused, match="needs the result"):
            self.resolve(run, HAPPENED)
        self.resolve(run, HAPPENED, result=None)
        assert step_of(run).result == Payload.of(None)

    def test_a_result_that_the_step_cannot_have_had_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*said: Any) -> Any:
            raise PayloadError("no")

        run, _step = dead_lettered_write(agent="strict")
        strict = RegisteredAgent("strict", lambda segment: None, encode_result=refuse)
        monkeypatch.setattr(registry, "_agents", {"strict": strict})
        before = snapshot(run)
        with pytest.raises(PayloadError):
            self.resolve(run, HAPPENED, result=7)
        assert snapshot(run) == before

    def test_the_result_of_an_agent_that_is_not_known_here_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, _step = dead_lettered_write(agent="elsewhere")
        monkeypatch.setattr(registry, "_agents", {})
        with pytest.raises(UnknownAgent):
            self.resolve(run, HAPPENED, result=7)
        self.resolve(run, DID_NOT, worker_may_act_confirmed=True)
        assert reread(run).status == RunStatus.QUEUED

    def resolve(self, run: AgentRun, verdict: Resolution, **options: Any) -> None:
        digest = reread(run).resolution_digest()
        api.resolve(run.uuid, verdict, by="boss", reason="asked", digest=digest, **options)
