"""Digests that nobody can guess from, and that fit however often the keys were changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentruns import api
from agentruns.enums import RunStatus, StepState, TerminationReason
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from agentruns.reencryption import reencrypt
from agentruns.segment import Segment
from tests.agentruns.test_encryption import NEW, OLD, keys
from tests.factories import READ, WRITE, execute_again, executed, step_of

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = {"pin": "4711"}
NOT_RETRYABLE = (RunStatus.FAILED, TerminationReason.NOT_RETRYABLE)


class Payer:
    """Pays, and fails in the step after it as long as it is told to; `done` is what it did."""

    def __init__(self, *, needs_approval: bool = False) -> None:
        self.needs_approval = needs_approval
        self.failing = True
        self.done: list[str] = []

    def __call__(self, segment: Segment) -> Any:
        paid = segment.step(
            "pay", self.pay, effect=WRITE, arguments=SECRET, needs_approval=self.needs_approval
        )
        segment.step("tell", self.tell, effect=READ)
        return paid

    def pay(self, key: str) -> str:
        self.done.append("pay")
        return "paid"

    def tell(self, key: str) -> str:
        if self.failing:
            raise ConnectionError("not now")
        return "told"

    def goes_on(self, run: AgentRun) -> AgentRun:
        self.failing = False
        return execute_again(run, self)


def digest(run: AgentRun) -> str:
    return step_of(run, "pay").digest


def end(run: AgentRun) -> tuple[str, str]:
    return run.status, run.termination_reason


def test_without_keys_a_digest_is_plain() -> None:
    run = executed(Payer())
    assert digest(run) == Payload.of(SECRET).digest
    assert run.digest_key is None


def test_with_keys_a_digest_can_not_be_guessed() -> None:
    with keys(OLD):
        one, other = executed(Payer()), executed(Payer())
        assert len({digest(one), digest(other), Payload.of(SECRET).digest}) == 3
        assert {len(digest(run)) for run in (one, other)} == {64}
        assert one.digest_key is not None
        assert one.digest_key.text.startswith("2:")


def rotated() -> None:
    with keys(NEW, OLD):
        reencrypt()


@pytest.mark.parametrize(
    ("change", "after"),
    [(lambda: None, (NEW, OLD)), (rotated, (NEW,)), (lambda: None, ("", OLD))],
    ids=["another key", "another key alone", "no key"],
)
def test_it_fits_after_a_change_of_keys(change: Callable[[], None], after: tuple[str, ...]) -> None:
    payer = Payer()
    with keys(OLD):
        run = executed(payer)
        before = digest(run)
    change()
    with keys(*after):
        run = payer.goes_on(run)
        assert end(run) == (RunStatus.COMPLETED, TerminationReason.COMPLETED), run.error_text
    assert digest(run) == before
    assert payer.done == ["pay"]


def test_a_run_that_began_without_keys_keeps_its_plain_digests() -> None:
    payer = Payer()
    run = executed(payer)
    with keys(NEW):
        run = payer.goes_on(run)
        assert run.status == RunStatus.COMPLETED, run.error_text
        assert run.digest_key is None
    assert payer.done == ["pay"]


def test_an_approval_holds_after_a_change_of_keys() -> None:
    payer = Payer(needs_approval=True)
    with keys(OLD):
        run = executed(payer)
        question = Step.objects.get(run=run, state=StepState.STARTED)
        assert question.digest != Payload.of(SECRET).digest
        api.decide(run.uuid, question.key, True, by="ada", digest=question.digest)
    rotated()
    with keys(NEW):
        run = payer.goes_on(run)
        assert run.status == RunStatus.COMPLETED, run.error_text
    assert payer.done == ["pay"]


def test_other_arguments_are_still_refused() -> None:
    payer = Payer()
    with keys(OLD):
        run = executed(payer)

        def another(segment: Segment) -> Any:
            return segment.step("pay", payer.pay, effect=WRITE, arguments={"pin": "4712"})

        run = execute_again(run, another)
    assert end(run) == NOT_RETRYABLE
    assert run.error_class == "JournalMismatch"
    assert payer.done == ["pay"]


@pytest.mark.parametrize("stored", ["1:7", '1:"no hex"', "2:damaged", "9:of a version to come"])
def test_a_key_that_can_not_be_read_fails_its_run_before_any_body(stored: str) -> None:
    payer = Payer()
    with keys(OLD):
        run = executed(payer)
        AgentRun.objects.filter(pk=run.pk).write_guarded(digest_key=Payload(stored))
        run = payer.goes_on(run)
    assert end(run) == NOT_RETRYABLE
    assert run.error_class == "PayloadUnreadable"
    assert payer.done == ["pay"]
