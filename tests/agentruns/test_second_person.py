"""A verdict on an interrupted write that a second person has to give, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django_q.models import OrmQ

from agentruns import api
from agentruns.enums import EventKind, Resolution, StepOutcome
from agentruns.exceptions import TransitionRefused
from agentruns.fields import Payload
from agentruns.models import AgentRun, Event
from agentruns.models.step import Ending
from agentruns.verdict import Opinion, Weight, weigh
from tests.factories import (
    call,
    dead_lettered_write,
    expire,
    fenced,
    history,
    reap,
    reread,
    returned,
    snapshot,
    step_of,
)

from .cases import conf

if TYPE_CHECKING:
    from agentruns.deciders import Decider

pytestmark = pytest.mark.django_db

HAPPENED, DID_NOT, LEFT = Resolution.HAPPENED, Resolution.DID_NOT_HAPPEN, Resolution.LEFT


@pytest.fixture(autouse=True)
def two_persons() -> Any:
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        yield


def say(run: AgentRun, verdict: Resolution, by: Decider, **options: Any) -> Weight:
    options.setdefault("digest", reread(run).resolution_digest())
    options.setdefault("reason", "asked the bank")
    if verdict is HAPPENED:
        options.setdefault("result", Payload.of({"id": 7, "paid": True}))
    return run.resolve(verdict, by=by, worker_may_act_confirmed=True, **options)


def events(run: AgentRun, kind: EventKind) -> list[tuple[str, Any]]:
    found = Event.objects.filter(run=run, kind=kind).order_by("pk")
    return [(event.actor, event.data.value if event.data else None) for event in found]


@pytest.mark.parametrize("verdict", Resolution)
def test_the_first_verdict_proposes_and_changes_nothing_else(verdict: Resolution) -> None:
    run, _step = dead_lettered_write()
    (before_run, before_steps, _events), digest = snapshot(run), reread(run).resolution_digest()
    assert say(run, verdict, "ada") is Weight.PROPOSES
    assert snapshot(run)[:2] == [before_run, before_steps]
    assert reread(run).resolution_digest() == digest
    ((actor, data),) = events(run, EventKind.RESOLUTION_PROPOSED)
    assert actor == "ada"
    assert (data["verdict"], data["why"], data["state"]) == (verdict, "asked the bank", digest)


@pytest.mark.parametrize("verdict", Resolution)
def test_a_second_person_who_says_the_same_has_it_take_effect(verdict: Resolution) -> None:
    run, _step = dead_lettered_write()
    say(run, verdict, "ada")
    assert say(run, verdict, "grace", reason="so did I") is Weight.TAKES_EFFECT
    row = reread(run)
    assert (row.status, row.resolved_by) == ("failed" if verdict is LEFT else "queued", "grace")
    ((actor, data),) = events(run, EventKind.RESOLVED)
    assert (actor, data["proposed_by"], data["why"]) == ("grace", "ada", "so did I")


def test_a_result_is_not_in_the_history() -> None:
    run, _step = dead_lettered_write()
    say(run, HAPPENED, "ada", result=Payload.of("a secret"))
    ((_actor, data),) = events(run, EventKind.RESOLUTION_PROPOSED)
    assert data["result"]
    assert "a secret" not in str(data)


def test_the_same_result_with_its_keys_in_another_order_is_the_same() -> None:
    run, _step = dead_lettered_write()
    say(run, HAPPENED, "ada")
    assert say(run, HAPPENED, "grace", result=Payload.of({"paid": True, "id": 7})) is (
        Weight.TAKES_EFFECT
    )


@pytest.mark.parametrize("name", ["ada", " ada", "Ada"])
def test_nobody_seconds_their_own_proposal(name: str) -> None:
    run, _step = dead_lettered_write()
    say(run, DID_NOT, "ada")
    before = snapshot(run)
    with pytest.raises(TransitionRefused, match="another person"):
        say(run, DID_NOT, name)
    assert snapshot(run) == before


def test_a_different_verdict_is_a_new_proposal() -> None:
    run, _step = dead_lettered_write()
    say(run, DID_NOT, "ada")
    assert say(run, LEFT, "grace") is Weight.PROPOSES_ANOTHER
    assert say(run, DID_NOT, "ada") is Weight.PROPOSES_ANOTHER
    assert reread(run).status == "failed"
    assert say(run, DID_NOT, "grace") is Weight.TAKES_EFFECT


def test_a_different_result_is_a_new_proposal() -> None:
    run, _step = dead_lettered_write()
    say(run, HAPPENED, "ada")
    assert say(run, HAPPENED, "grace", result=Payload.of({"id": 8})) is Weight.PROPOSES_ANOTHER
    assert step_of(run).result is None


def test_a_proposer_may_think_again_but_not_decide_alone() -> None:
    run, _step = dead_lettered_write()
    say(run, DID_NOT, "ada")
    assert say(run, HAPPENED, "ada") is Weight.PROPOSES_ANOTHER
    with pytest.raises(TransitionRefused):
        say(run, HAPPENED, "ada")
    assert say(run, HAPPENED, "grace") is Weight.TAKES_EFFECT


def test_late_evidence_voids_a_proposal() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    shown = reread(run).resolution_digest()
    say(run, DID_NOT, "ada")
    run.add_late_evidence(held, step, returned({"id": 7}))
    with pytest.raises(TransitionRefused, match="look at it again"):
        say(run, DID_NOT, "grace", digest=shown)
    assert say(run, DID_NOT, "grace") is Weight.PROPOSES
    assert reread(run).status == "failed"


def test_what_another_verdict_left_needs_two_again() -> None:
    run, _step = dead_lettered_write()
    say(run, LEFT, "ada")
    say(run, LEFT, "grace")
    assert say(run, HAPPENED, "grace") is Weight.PROPOSES
    assert say(run, HAPPENED, "ada") is Weight.TAKES_EFFECT


def test_a_proposal_for_an_earlier_attempt_does_not_serve() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    say(run, HAPPENED, "ada")
    say(run, DID_NOT, "ada")
    say(run, DID_NOT, "grace")
    taken = AgentRun.objects.claim(run.uuid, "test:w:1:0")
    assert taken is not None
    run.mark_pending_effect(taken[1], call())
    expire(run)
    reap(run)
    assert say(run, DID_NOT, "grace") is Weight.PROPOSES
    assert (held.epoch, step.attempt) == (1, 1)


def test_the_requester_is_not_the_second_where_he_may_not_approve() -> None:
    run, _step = dead_lettered_write(requested_by="grace")
    say(run, LEFT, "ada")
    with conf(REQUESTER_MAY_APPROVE=False), pytest.raises(TransitionRefused, match="asked for"):
        say(run, LEFT, "grace")
    assert say(run, LEFT, "grace") is Weight.TAKES_EFFECT


def test_the_requester_may_be_the_first() -> None:
    run, _step = dead_lettered_write(requested_by="grace")
    with conf(REQUESTER_MAY_APPROVE=False):
        assert say(run, LEFT, "grace") is Weight.PROPOSES
        assert say(run, LEFT, "ada") is Weight.TAKES_EFFECT


@pytest.mark.parametrize("verdict", [HAPPENED, DID_NOT])
def test_what_can_not_be_done_is_not_proposed(verdict: Resolution) -> None:
    run, _step = dead_lettered_write()
    before, digest = snapshot(run), reread(run).resolution_digest()
    with pytest.raises(TransitionRefused):
        run.resolve(verdict, by="ada", reason="so it is", digest=digest)
    assert snapshot(run) == before


def test_a_destination_needs_no_second() -> None:
    run, _step = dead_lettered_write()
    say(run, DID_NOT, "ada")
    weight = say(run, HAPPENED, "verify:write", by_destination=True)
    assert (weight, reread(run).status) == (Weight.TAKES_EFFECT, "queued")


def test_a_damaged_proposal_does_not_serve() -> None:
    run, _step = dead_lettered_write()
    say(run, LEFT, "ada")
    Event.objects.filter(run=run, kind=EventKind.RESOLUTION_PROPOSED).update(data=Payload("1:{}"))
    assert say(run, LEFT, "grace") is Weight.PROPOSES


def test_nobody_is_woken_for_a_proposal(django_capture_on_commit_callbacks: Any) -> None:
    run, _step = dead_lettered_write()
    digest = reread(run).resolution_digest()
    for by, woken in (("ada", 0), ("grace", 1)):
        with django_capture_on_commit_callbacks(execute=True):
            api.resolve(
                run.uuid, DID_NOT, by=by, reason="so", digest=digest, worker_may_act_confirmed=True
            )
        assert OrmQ.objects.count() == woken


def test_the_history_names_both() -> None:
    run, _step = dead_lettered_write()
    say(run, LEFT, "ada")
    say(run, LEFT, "grace")
    assert history(run)[-2:] == ["resolution_proposed", "resolved"]


def test_a_proposal_on_another_state_is_none() -> None:
    given = Opinion("grace", LEFT, "today")
    proposed = Opinion("ada", LEFT, "yesterday")
    assert weigh(given, proposed, may_second=True) is Weight.PROPOSES
    assert weigh(given, None, may_second=False) is Weight.PROPOSES


def test_evidence_that_it_did_not_land_voids_it_too() -> None:
    run, held, step = fenced()
    expire(run)
    reap(run)
    say(run, LEFT, "ada")
    run.add_late_evidence(held, step, Ending(StepOutcome.RAISED, None, "reset"))
    assert say(run, LEFT, "grace") is Weight.PROPOSES


# Users of this project, whose permission is judged.


def user(name: str, *permissions: str) -> User:
    account = User.objects.create_user(name)
    account.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return User.objects.get(pk=account.pk)


def test_a_renamed_account_is_still_the_same_person() -> None:
    run, _step = dead_lettered_write()
    ada = user("ada", "resolve_agentrun")
    say(run, LEFT, ada)
    ada.username = "grace"
    ada.save()
    with pytest.raises(TransitionRefused, match="another person"):
        say(run, LEFT, User.objects.get(pk=ada.pk))
    assert say(run, LEFT, user("alan", "resolve_agentrun")) is Weight.TAKES_EFFECT


@pytest.mark.parametrize("change", ["no permission", "not active", "does not exist"])
def test_a_proposal_of_somebody_who_may_not_resolve_any_more_does_not_count(change: str) -> None:
    run, _step = dead_lettered_write()
    ada = user("ada", "resolve_agentrun")
    say(run, LEFT, ada)
    if change == "no permission":
        ada.user_permissions.clear()
    elif change == "not active":
        User.objects.filter(pk=ada.pk).update(is_active=False)
    else:
        ada.delete()
    last = reread(run).last_proposal()
    assert last is not None
    assert change in run.why_void(last)
    assert say(run, LEFT, "grace") is Weight.PROPOSES
    assert reread(run).resolution == ""


@pytest.mark.parametrize("second", [True, False])
def test_a_user_without_the_permission_gives_no_verdict(second: bool) -> None:
    run, _step = dead_lettered_write()
    before = snapshot(run)
    with (
        conf(RESOLVE_NEEDS_SECOND_PERSON=second),
        pytest.raises(TransitionRefused, match="no permission"),
    ):
        say(run, LEFT, user("ada", "decide_agentrun"))
    assert snapshot(run) == before


@pytest.mark.parametrize("name", ["grace", "Grace", " grace "])
def test_the_requester_is_known_by_any_spelling_of_the_name(name: str) -> None:
    run, _step = dead_lettered_write(requested_by="grace")
    say(run, LEFT, "ada")
    with conf(REQUESTER_MAY_APPROVE=False), pytest.raises(TransitionRefused, match="asked for"):
        say(run, LEFT, name)


def test_the_history_does_not_tell_what_result_was_proposed(settings: Any) -> None:
    """A digest alone would tell it to whoever tries values, such as all the PINs."""
    run, _step = dead_lettered_write()
    result = Payload.of("4711")
    say(run, HAPPENED, "ada", result=result)
    [(_actor, kept)] = events(run, EventKind.RESOLUTION_PROPOSED)
    assert kept["result"]
    assert result.digest not in str(kept)
    settings.SECRET_KEY = "another"
    other, _step = dead_lettered_write()
    say(other, HAPPENED, "ada", result=result)
    [(_actor, kept_there)] = events(other, EventKind.RESOLUTION_PROPOSED)
    assert kept_there["result"] != kept["result"]
