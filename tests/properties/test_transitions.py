"""Any order of what workers, zombies, reapers and people do to one run, against the model of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from agentruns.enums import Resolution, StepOutcome
from agentruns.exceptions import CancelRequested, LeaseLost, TransitionRefused
from agentruns.failures import classify
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Step
from agentruns.models.step import Ending
from tests import factories
from tests.factories import call, question, returned, snapshot

from .model import ENDED, REPEATABLE, WRITE, Attempt, Model

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form", "patience")]

EFFECTS = {"send": WRITE, "put": REPEATABLE}
OWNERS = ["worker:here:1:0", "worker:there:1:0"]
BOTH = (True, False)
FAILURES = {"transient": ConnectionError("away"), "hopeless": ValueError("a bug")}

Stamped = tuple[Claim, Step, Attempt]


@pytest.fixture
def patience(settings: Any) -> None:
    """Nothing becomes due or stale by itself."""
    long = {"LEASE_SECONDS": 3600, "RETRY_BACKOFF_SECONDS": 3600, "RETRY_BACKOFF_MAX_SECONDS": 3600}
    settings.AGENTRUNS = {**settings.AGENTRUNS, **long, "MAX_STEP_SECONDS": 3600}


Deed = Callable[["OneRun"], None]
DEEDS: list[tuple[Callable[[OneRun], Any], Deed]] = []


def when(*conditions: Any, weight: int = 1) -> Callable[[Deed], Deed]:
    """A deed that is tried in these statuses, or where the function says so; often, if it has weight."""

    def may(machine: OneRun) -> bool:
        return any(
            condition(machine) if callable(condition) else condition == machine.model.status
            for condition in conditions
        )

    def listed(deed: Deed) -> Deed:
        DEEDS.extend([(may, deed)] * weight)
        return deed

    return listed


class OneRun(RuleBasedStateMachine):
    """A run, and after its end another one."""

    random = Random(0)

    @initialize()
    def begin(self) -> None:
        self.model, self.run = Model(), factories.queued()
        self.claims: list[Claim] = []
        self.stamped: list[Stamped] = []
        self.claim()

    @rule(seed=st.integers(0, 2**32 - 1))
    def act(self, seed: int) -> None:
        """Do one of the things that somebody may do now: each as likely as the others."""
        self.random = Random(seed)
        deed = self.random.choice([deed for may, deed in DEEDS if may(self)])
        note(deed.__name__)
        deed(self)

    def refuses(self, error: type[BaseException], deed: Callable[[], object]) -> None:
        """It raises this, and nothing that is stored changes."""
        before = snapshot(self.run)
        with pytest.raises(error):
            deed()
        assert snapshot(self.run) == before

    @property
    def owner(self) -> Claim:
        return self.claims[-1]

    # A worker that owns the run.

    @when("queued", weight=3)
    def claim(self) -> None:
        owner = self.random.choice(OWNERS)
        if not self.model.due:
            assert AgentRun.objects.claim(self.run.uuid, owner) is None
            factories.make_due(self.run)
            self.model.due = True
        _run, claim = factories.claim(self.run, owner)
        self.claims.append(claim)
        self.model.claim(owner)

    @when("running", weight=7)
    def stamp(self) -> None:
        model, key = self.model, self.random.choice(sorted(EFFECTS))
        effect = EFFECTS[key]
        stamp = partial(self.run.mark_pending_effect, self.owner, call(key, effect))
        if model.cancel_requested:
            self.refuses(CancelRequested, stamp)
        elif model.is_recorded(key) or model.fence or model.standing()[0]:
            self.refuses(TransitionRefused, stamp)
        elif effect == WRITE and (landed := model.landed_before(key)):
            with pytest.raises(LeaseLost):
                stamp()
            model.fence, model.fenced = WRITE, landed
            model.dead_letter("interrupted_write")
        else:
            self.stamped.append((self.owner, stamp(), model.stamp(self.owner, key, effect)))

    @when(lambda self: self.model.status == "running" and self.model.fenced, weight=4)
    def record(self) -> None:
        """Record the last write: the one in flight, or one whose fence somebody has emptied."""
        _claim, step, attempt = self.stamped[-1]
        record = partial(self.run.record_step, self.owner, call(step.key), returned("done"), step)
        if attempt.state == "started":
            assert record() == self.model.cancel_requested
            self.model.record(attempt)
        self.refuses(TransitionRefused, record)

    @when("running")
    def read_and_renew(self) -> None:
        key = f"read-{len(self.model.attempts)}"
        self.run.record_step(self.owner, call(key, factories.READ), returned("read"))
        read = Attempt(key, "read_only", self.owner.epoch, self.owner.owner, "recorded")
        self.model.attempts.append(read)
        self.run.renew(self.owner)
        self.model.lease_over = False

    @when("running")
    def complete(self) -> None:
        complete = partial(self.run.complete, self.owner, Payload.of("output"))
        if self.model.standing()[0]:
            self.refuses(TransitionRefused, complete)
            return
        complete()
        if self.model.cancel_requested:
            self.model.cancel()
        else:
            self.model.leave("completed", "completed", "completed")

    @when("running")
    def fail(self) -> None:
        failure, ended = self.random.choice(sorted(FAILURES)), self.random.choice(BOTH)
        error = FAILURES[failure]
        self.run.recover(self.owner, classify(error), error, worker_ended=ended)
        self.model.stop(failure == "hopeless", ended)

    @when("running")
    def give_back(self) -> None:
        self.run.give_back(self.owner)
        if self.model.standing()[0] or self.model.cancel_requested:
            self.model.stop()
        else:
            self.model.requeue("given_back", due=True, requeues=self.model.requeues)

    @when("running")
    def ask_and_park(self) -> None:
        model = self.model
        self.refuses(TransitionRefused, partial(self.run.answer, "?", Payload.of(1), by="ann"))
        key = f"question-{model.history.count('answered')}"
        self.run.ask(self.owner, question(key=key))
        if model.question != key:
            model.history.append("input_asked")
        model.question = key
        suspend = partial(self.run.suspend, self.owner)
        if model.cancel_requested:
            self.refuses(CancelRequested, suspend)
        elif model.standing()[0]:
            self.refuses(TransitionRefused, suspend)
        else:
            suspend()
            model.leave("waiting_for_input", "parked")

    # A zombie: whoever has claimed the run and does not own it.

    @when("queued", "running", "waiting_for_input", *ENDED)
    def zombie_acts(self) -> None:
        zombies = [claim for claim in self.claims if not self.model.owns(claim)]
        # An impostor has the present epoch, but another name.
        zombies.append(Claim(self.run.pk, "worker:nowhere:1:0", self.model.epoch))
        claim = self.random.choice(zombies)
        own = [step for stamper, step, _attempt in self.stamped if stamper == claim]
        run, error = self.run, ConnectionError("away")
        deeds: list[Callable[[], object]] = [
            partial(run.renew, claim),
            partial(run.mark_pending_effect, claim, call("send")),
            partial(run.record_step, claim, call("read", factories.READ), returned("late")),
            partial(run.complete, claim, Payload.of("late")),
            partial(run.recover, claim, classify(error), error),
            partial(run.give_back, claim),
            partial(run.ask, claim, question(key="of a zombie")),
            partial(run.suspend, claim),
            *(partial(run.record_step, claim, call(s.key), returned("late"), s) for s in own),
        ]
        self.refuses(LeaseLost, self.random.choice(deeds))

    @when(lambda self: any(not which[2].late for which in self.stamped))
    def learn_late(self) -> None:
        """Whoever has lost the run, or fails in it, says how the write ended that it had started."""
        claim, step, attempt = [which for which in self.stamped if not which[2].late][-1]
        landed = self.random.choice(BOTH)
        ending = returned("late") if landed else Ending(StepOutcome.RAISED, None, "no answer")
        self.run.add_late_evidence(claim, step, ending)
        attempt.late, attempt.landed_late = True, landed
        self.model.history.append("late_evidence")

    # The reaper, the clock, and somebody with a shell.

    @when("running")
    def reap(self) -> None:
        if self.random.choice(BOTH) or self.model.lease_over:
            factories.expire(self.run)
            factories.reap(self.run)
            self.model.history.append("lease_lost")
            self.model.stop()
        else:
            with transaction.atomic():
                assert list(AgentRun.objects.lock_stale([self.run.pk])) == []

    @when("running")
    def lease_runs_out_unnoticed(self) -> None:
        factories.expire(self.run)
        self.model.lease_over = True

    @when(lambda self: self.model.fence)
    def empty_the_fence_by_hand(self) -> None:
        factories.empty_fence_by_hand(self.run)
        self.model.clear_fence()

    # People.

    @when(lambda self: self.model.status not in ENDED and len(self.model.history) > 5)
    def cancel(self) -> None:
        self.run.cancel(by="ann")
        model = self.model
        if model.status == "running" and model.standing()[0]:
            if not model.cancel_requested:
                model.history.append("cancel_asked")
            model.cancel_requested = True
        else:
            model.cancel()

    @when("waiting_for_input")
    def answer(self) -> None:
        self.run.answer(self.model.question, Payload.of("yes"), by="ann")
        self.model.question = ""
        self.model.requeue("answered", due=True, requeues=self.model.requeues)

    @when("failed")
    def retry(self) -> None:
        if self.model.standing()[0] == WRITE:
            self.refuses(TransitionRefused, partial(self.run.retry, by="ann"))
            return
        self.run.retry(by="ann")
        self.model.requeue("retried", due=True, requeues=0)

    @when("failed", weight=2)
    def resolve(self) -> None:
        model, verdict = self.model, self.random.choice(list(Resolution))
        confirmed = self.random.choice(BOTH)
        fence, attempt = model.standing()
        resolve = partial(
            self.run.resolve,
            verdict,
            by="ann",
            reason="asked them",
            result=Payload.of("sent") if verdict is Resolution.HAPPENED else None,
            worker_may_act_confirmed=confirmed,
        )
        self.refuses(TransitionRefused, partial(resolve, digest="of another state"))
        resolve = partial(resolve, digest=factories.reread(self.run).resolution_digest())
        asked = verdict is Resolution.DID_NOT_HAPPEN and not confirmed
        if fence != WRITE or (asked and attempt and model.former_worker_may_act(attempt)):
            self.refuses(TransitionRefused, resolve)
            return
        resolve()
        assert attempt is not None
        if verdict is Resolution.LEFT:
            model.resolution = "left"
            model.history.append("resolved")
            return
        attempt.state = "recorded" if verdict is Resolution.HAPPENED else "not_applied"
        model.denied[attempt.key] += verdict is Resolution.DID_NOT_HAPPEN
        model.resolution = ""
        model.requeue("resolved", due=True, requeues=0)

    @when(lambda self: self.model.status not in ENDED and len(self.claims) > 2)
    def hold(self) -> None:
        """After a restore."""
        self.run.hold(by="ann", reason="restored")
        held = self.model.standing()[0] == WRITE
        self.model.dead_letter("interrupted_write" if held else "not_retryable")

    @when(*ENDED)
    def nothing_moves_what_has_ended(self) -> None:
        """But a person's `retry` and `resolve`; then another run begins."""
        run = self.run
        self.refuses(TransitionRefused, partial(run.hold, by="ann", reason="restored"))
        self.refuses(TransitionRefused, partial(run.answer, "?", Payload.of(1), by="ann"))
        assert AgentRun.objects.claim(run.uuid, OWNERS[0]) is None
        if self.model.status == "failed":
            self.refuses(TransitionRefused, partial(run.cancel, by="ann"))
        else:
            self.refuses(TransitionRefused, partial(run.retry, by="ann"))
            self.begin()

    # What must be true at every moment.

    @invariant()
    def the_row_is_as_the_rules_say(self) -> None:
        row, model = factories.reread(self.run), self.model
        found = (row.status, row.claim_epoch, row.claimed_by, row.requeue_count, row.pending_effect)
        said = (model.status, model.epoch, model.owner, model.requeues, model.fence)
        assert found == said
        assert (row.termination_reason, row.resolution) == (model.reason, model.resolution)
        assert (row.cancel_requested_at is not None) == model.cancel_requested

    @invariant()
    def the_journal_and_the_history_have_neither_gap_nor_duplicate(self) -> None:
        steps = self.run.journal().exclude(kind="input").order_by("pk")
        found = list(steps.values_list("key", "effect", "state", "epoch", "owner"))
        said = [(a.key, a.effect, a.state, a.epoch, a.owner) for a in self.model.attempts]
        assert found == said
        assert factories.history(self.run) == self.model.history

    @invariant()
    def a_body_starts_once_unless_somebody_said_that_it_did_not_happen(self) -> None:
        for key, effect in EFFECTS.items():
            if effect == WRITE:
                assert self.model.bodies[key] <= 1 + self.model.denied[key]

    def teardown(self) -> None:
        """Nothing is lost: left to workers and sweeps, the run ends or waits for a person."""
        if not hasattr(self, "run"):
            return
        for _ in range(20):
            status = factories.reread(self.run).status
            if status in ENDED or status == "waiting_for_input":
                return
            if status == "queued":
                factories.make_due(self.run)
                factories.claim(self.run)
            else:
                factories.expire(self.run)
                factories.reap(self.run)
        raise AssertionError(f"run {self.run.uuid} does not end: {factories.history(self.run)}")


@pytest.mark.timeout(1800)  # a failure is first made as short as it can be; so is a wish for more
def test_every_order_of_transitions_does_what_the_rules_say(
    request: pytest.FixtureRequest,
) -> None:
    chosen = settings(
        max_examples=request.config.getoption("--examples"),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(OneRun, settings=chosen)
