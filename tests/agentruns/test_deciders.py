"""A decision of a user counts as long as that user may decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import OperationalError

from agentruns import api
from agentruns.deciders import RESOLVE, RETRY
from agentruns.enums import EventKind, Resolution, RunStatus, StepState, ToolEffect
from agentruns.exceptions import ApprovalDenied, TransitionRefused
from agentruns.models import AgentRun, Event, Step
from agentruns.segment import Segment
from tests.factories import (
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    dead_lettered_write,
    execute_again,
    executed,
    history,
    snapshot,
    with_status,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def boss() -> User:
    user: User = User.objects.create_user("boss")
    user.user_permissions.add(Permission.objects.get(codename="decide_agentrun"))
    return User.objects.get(pk=user.pk)


class Mailer:
    def __init__(self, effect: ToolEffect = WRITE) -> None:
        self.effect = effect
        self.sent: list[str] = []

    def __call__(self, segment: Segment) -> Any:
        try:
            return segment.step(
                "send", self.send, effect=self.effect, arguments={"to": "x"}, needs_approval=True
            )
        except ApprovalDenied:
            return "denied"

    def send(self, key: str) -> str:
        self.sent.append(key)
        return "sent"


def decide(run: AgentRun, by: Any, approved: bool = True) -> None:
    question = run.journal().open_questions().get()
    api.decide(run.uuid, question.key, approved, by=by, digest=question.digest)


def lose_permission(user: User) -> None:
    user.user_permissions.clear()


def deactivate(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def delete(user: User) -> None:
    User.objects.filter(pk=user.pk).delete()


def nothing(user: User) -> None:
    pass


LOST = OperationalError("the connection was lost")
LOSSES = [lose_permission, deactivate, delete]


@pytest.mark.parametrize("approved", [True, False])
def test_a_user_without_the_permission_decides_nothing(approved: bool) -> None:
    run = executed(Mailer())
    before = snapshot(run)
    for user in (User.objects.create_user("guest"), AnonymousUser()):
        with pytest.raises(TransitionRefused, match="no permission"):
            decide(run, user, approved)
    assert snapshot(run) == before


def test_a_decision_that_can_not_be_recorded_does_not_take_effect(
    boss: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailer = Mailer()
    run = executed(mailer)
    before = snapshot(run)
    with monkeypatch.context() as patch:
        patch.setattr(AgentRun, "add_event", lambda *args, **more: (_ for _ in ()).throw(LOST))
        with pytest.raises(OperationalError):
            decide(run, boss)
    assert snapshot(run) == before
    decide(run, boss)
    assert execute_again(run, mailer).status == RunStatus.COMPLETED


def test_an_inactive_user_decides_nothing(boss: User) -> None:
    run = executed(Mailer())
    deactivate(boss)
    with pytest.raises(TransitionRefused, match="no permission"):
        decide(run, User.objects.get(pk=boss.pk))


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE, TRANSACTIONAL])
def test_the_approval_of_a_user_allows_the_write(boss: User, effect: ToolEffect) -> None:
    mailer = Mailer(effect)
    run = executed(mailer)
    decide(run, boss)
    assert execute_again(run, mailer).status == RunStatus.COMPLETED
    assert len(mailer.sent) == 1
    granted = Event.objects.get(run=run, kind=EventKind.GRANTED)
    assert granted.actor == "boss"


@pytest.mark.parametrize("effect", [WRITE, REPEATABLE, TRANSACTIONAL])
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_an_approval_of_somebody_who_may_not_decide_any_more_is_asked_again(
    boss: User, lose: Callable[[User], None], effect: ToolEffect
) -> None:
    mailer = Mailer(effect)
    run = executed(mailer)
    decide(run, boss)
    lose(boss)
    run = execute_again(run, mailer)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    assert (mailer.sent, run.pending_effect) == ([], "")
    assert history(run)[-4:] == [
        EventKind.CLAIMED,
        EventKind.APPROVAL_VOID,
        EventKind.APPROVAL_ASKED,
        EventKind.PARKED,
    ]
    void = Event.objects.get(run=run, kind=EventKind.APPROVAL_VOID)
    assert void.data is not None
    assert void.data.value["step"] == "send?"
    assert "any more" in void.data.value["why"]
    former = Step.objects.get(run=run, key="send?", attempt=1)
    assert (former.state, former.used_at) == (StepState.NOT_APPLIED, None)

    decide(run, "somebody else")
    assert execute_again(run, mailer).status == RunStatus.COMPLETED
    assert len(mailer.sent) == 1


def test_a_denial_stays_a_denial(boss: User) -> None:
    mailer = Mailer()
    run = executed(mailer)
    decide(run, boss, approved=False)
    lose_permission(boss)
    run = execute_again(run, mailer)
    assert (run.status, mailer.sent) == (RunStatus.COMPLETED, [])


def test_a_worker_that_dies_after_it_took_a_void_approval_out_asks_again(
    boss: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailer = Mailer()
    run = executed(mailer)
    decide(run, boss)
    lose_permission(boss)
    with monkeypatch.context() as patch:
        patch.setattr(AgentRun, "ask", lambda *args: (_ for _ in ()).throw(ConnectionResetError()))
        run = execute_again(run, mailer)
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute_again(run, mailer)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL
    assert history(run).count(EventKind.APPROVAL_VOID) == 1
    assert mailer.sent == []


def test_a_write_that_is_recorded_needs_its_approver_no_more(boss: User) -> None:
    mailer = Mailer()

    def fails_after(segment: Segment) -> None:
        mailer(segment)
        raise ConnectionResetError

    run = executed(fails_after)
    decide(run, boss)
    execute_again(run, fails_after)
    lose_permission(boss)
    assert execute_again(run, mailer).status == RunStatus.COMPLETED
    assert len(mailer.sent) == 1


ACTS = {
    "resolve": (
        RESOLVE,
        lambda by: _resolved(dead_lettered_write()[0], by),
    ),
    "retry": (RETRY, lambda by: with_status(RunStatus.FAILED).retry(by=by)),
}


def _resolved(run: AgentRun, by: User) -> None:
    run.resolve(Resolution.LEFT, by=by, reason="so", digest=run.resolution_digest())


@pytest.mark.parametrize("taken", ["permission", "activity", "account"])
@pytest.mark.parametrize(("permission", "act"), ACTS.values(), ids=ACTS)
def test_what_was_taken_away_while_the_lock_was_waited_for_counts(
    permission: str, act: Any, taken: str
) -> None:
    """The account that the request was checked with remembers its permissions."""
    user = User.objects.create_user("eve")
    user.user_permissions.set(Permission.objects.filter(codename=permission.split(".")[1]))
    assert user.has_perm(permission)
    act(user)
    if taken == "permission":
        user.user_permissions.clear()
    elif taken == "activity":
        User.objects.filter(pk=user.pk).update(is_active=False)
    else:
        User.objects.filter(pk=user.pk).delete()
    with pytest.raises(TransitionRefused, match="any more"):
        act(user)
