"""Two operators who press at the same moment: one verb takes effect, the other is explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentruns import api
from agentruns.enums import EventKind, Resolution, RunStatus, StepKind, StepState
from agentruns.exceptions import TransitionRefused
from agentruns.models import AgentRun, Step
from agentruns.verdict import Weight
from tests.agentruns.cases import answered, asking, conf, failed, interrupted
from tests.factories import history, reread

from .rivals import Rival, second_comes_while, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

Press = Callable[[AgentRun, str], Callable[[], Any]]


def resolving(verdict: Resolution) -> Press:
    def press(run: AgentRun, by: str) -> Callable[[], Any]:
        digest = run.resolution_digest()
        given: dict[str, Any] = {"by": by, "reason": "asked the bank", "digest": digest}
        if verdict is Resolution.HAPPENED:
            given["result"] = by
        return lambda: api.resolve(run.uuid, verdict, **given)

    return press


def deciding(approved: bool) -> Press:
    def press(run: AgentRun, by: str) -> Callable[[], Any]:
        digest = run.journal().get().digest
        return lambda: api.decide(run.uuid, "ask", approved, by=by, digest=digest)

    return press


def answering(run: AgentRun, by: str) -> Callable[[], Any]:
    return lambda: api.submit_input(run.uuid, "ask", by, by=by)


def retrying(run: AgentRun, by: str) -> Callable[[], Any]:
    return lambda: api.retry(run.uuid, by=by)


def asks_for_approval() -> AgentRun:
    return asking(StepKind.APPROVAL)


HAPPENED, DID_NOT, LEFT = map(resolving, Resolution)
YES, NO = deciding(True), deciding(False)
PAIRS: list[tuple[Callable[[], AgentRun], Press, Press, set[EventKind]]] = [
    (interrupted, HAPPENED, HAPPENED, {EventKind.RESOLVED}),
    (interrupted, HAPPENED, DID_NOT, {EventKind.RESOLVED}),
    (interrupted, DID_NOT, DID_NOT, {EventKind.RESOLVED}),
    (interrupted, LEFT, DID_NOT, {EventKind.RESOLVED}),
    (asks_for_approval, YES, NO, {EventKind.GRANTED, EventKind.DENIED}),
    (asks_for_approval, YES, YES, {EventKind.GRANTED}),
    (asking, answering, answering, {EventKind.ANSWERED}),
    (failed, retrying, retrying, {EventKind.RETRIED}),
]
IDS = [
    "both: it happened",
    "happened, did not",
    "both: did not happen",
    "left, did not happen",
    "yes, no",
    "both: yes",
    "two answers",
    "two retries",
]


def took_effect(run: AgentRun, kinds: set[EventKind]) -> list[str]:
    """Who did it, by the history."""
    return [event.actor for event in run.history().filter(kind__in=kinds)]


def explained(rival: Rival) -> str:
    with pytest.raises(TransitionRefused) as refusal:
        rival.outcome()
    return str(refusal.value)


@pytest.mark.parametrize(("make", "first", "second", "kinds"), PAIRS, ids=IDS)
def test_who_comes_second_waits_changes_nothing_and_is_told_why(
    make: Callable[[], AgentRun], first: Press, second: Press, kinds: set[EventKind]
) -> None:
    run = make()
    later = second_comes_while(first(run, "ada"), second(run, "grace"))
    assert str(run.uuid) in explained(later)
    assert took_effect(run, kinds) == ["ada"]


@pytest.mark.parametrize(("make", "first", "second", "kinds"), PAIRS, ids=IDS)
def test_of_several_at_the_same_moment_exactly_one_takes_effect(
    make: Callable[[], AgentRun], first: Press, second: Press, kinds: set[EventKind]
) -> None:
    run = make()
    presses = [first(run, "ada"), second(run, "grace"), first(run, "alan"), second(run, "mary")]
    rivals = together(*presses)
    refused = [rival for rival in rivals if rival.failed_with(TransitionRefused)]
    for rival in set(rivals) - set(refused):
        rival.outcome()
    assert len(refused) == len(rivals) - 1
    assert len(took_effect(run, kinds)) == 1


def test_the_result_that_is_recorded_is_the_one_of_whose_verdict_it_was() -> None:
    run = interrupted()
    rivals = together(HAPPENED(run, "ada"), HAPPENED(run, "grace"))
    (actor,) = took_effect(run, {EventKind.RESOLVED})
    step = Step.objects.get(run=run)
    assert step.result is not None
    assert (step.state, step.result.value) == (StepState.RECORDED, actor)
    assert len([rival for rival in rivals if rival.failed_with(TransitionRefused)]) == 1
    assert reread(run).resolved_by == actor


def test_the_answer_that_is_recorded_is_the_one_of_whose_decision_it_was() -> None:
    run = asks_for_approval()
    together(YES(run, "ada"), NO(run, "grace"))
    said = answered(run)
    assert said["approved"] is (said["by"] == "ada")
    assert took_effect(run, {EventKind.GRANTED, EventKind.DENIED}) == [said["by"]]


def test_of_two_first_persons_one_proposes_and_the_other_seconds() -> None:
    run = interrupted()
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        rivals = together(DID_NOT(run, "ada"), DID_NOT(run, "grace"))
        weights = {rival.outcome() for rival in rivals}
    assert weights == {Weight.PROPOSES, Weight.TAKES_EFFECT}
    assert history(run)[-2:] == ["resolution_proposed", "resolved"]
    assert reread(run).status == RunStatus.QUEUED


def test_one_person_at_two_windows_is_not_two_persons() -> None:
    run = interrupted()
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        rivals = together(DID_NOT(run, "ada"), DID_NOT(run, "ada"))
        assert len([rival for rival in rivals if rival.failed_with(TransitionRefused)]) == 1
    assert reread(run).status == RunStatus.FAILED


def test_a_verdict_that_waited_for_late_evidence_is_refused() -> None:
    run = interrupted()
    step = Step.objects.get(run=run)

    def report() -> None:
        AgentRun.objects.lock_one(pk=run.pk)
        Step.objects.filter(pk=step.pk).update(late_outcome="returned")

    later = second_comes_while(report, DID_NOT(run, "ada"))
    assert "look at it again" in explained(later)
    assert reread(run).status == RunStatus.FAILED
