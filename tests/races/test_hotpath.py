from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentruns import hotpath
from agentruns.conf import conf
from agentruns.enums import Resolution, RunStatus, StepState
from agentruns.exceptions import CancelRequested, LeaseLost, TransitionRefused
from agentruns.guard import from_now
from agentruns.models import AgentRun
from tests.factories import (
    READ,
    WRITE,
    call,
    claim,
    expire,
    fenced,
    make_due,
    reap,
    reread,
    returned,
    running,
    snapshot,
    step_of,
)
from tests.servers.waiting import wait_until

from .rivals import Rival, holding, second_comes_while

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.mark.parametrize(
    "act",
    {
        "renew": lambda run, held, step: hotpath.renew(run, held),
        "record a read": lambda run, held, step: hotpath.record(
            run, held, call("read", READ), returned()
        ),
        "record a write": lambda run, held, step: hotpath.record(
            run, held, call(), returned(), step
        ),
    }.items(),
    ids=lambda named: named[0],
)
def test_the_plain_case_is_one_statement(act: Any) -> None:
    run, held, step = fenced()
    with CaptureQueriesContext(connection) as sent:
        act[1](run, held, step)
    assert len(sent) == 1, [query["sql"] for query in sent]


def test_a_plain_stamp_is_one_statement_and_gives_the_stored_attempt() -> None:
    run, held = running()
    with CaptureQueriesContext(connection) as sent:
        step = hotpath.stamp(run, held, call(arguments={"to": "customer"}))
    assert len(sent) == 1, [query["sql"] for query in sent]
    stored = step_of(run)
    for field in stored._meta.concrete_fields:
        assert getattr(step, field.attname) == getattr(stored, field.attname), field.name
    assert (stored.state, reread(run).pending_step_id) == (StepState.STARTED, step.pk)


@pytest.mark.parametrize(
    "act",
    {
        "renew": hotpath.renew,
        "stamp": lambda run, held: hotpath.stamp(run, held, call()),
        "record a read": lambda run, held: hotpath.record(
            run, held, call("read", READ), returned()
        ),
    }.items(),
    ids=lambda named: named[0],
)
def test_a_statement_leaves_every_other_run_alone(act: Any) -> None:
    other, _held, _step = fenced()
    expire(other)
    before = snapshot(other)
    run, held = running()
    with CaptureQueriesContext(connection) as sent:
        act[1](run, held)
    assert len(sent) == 1, "a write in doubt in another run is no reason for the portable form"
    assert snapshot(other) == before


def test_the_record_of_a_write_leaves_every_other_run_alone() -> None:
    other, _held, _step = fenced()
    expire(other)
    before = snapshot(other)
    run, held, step = fenced()
    hotpath.record(run, held, call(), returned(), step)
    assert snapshot(other) == before


@pytest.mark.usefixtures("form")
def test_a_stamp_that_waited_for_a_cancel_is_refused() -> None:
    run, held = running()

    def ask_to_cancel() -> None:
        AgentRun.objects.filter(pk=run.pk).write_guarded(cancel_requested_at=from_now(0))

    stamp = second_comes_while(ask_to_cancel, lambda: run.mark_pending_effect(held, call()))
    with pytest.raises(CancelRequested):
        stamp.outcome()
    assert not run.journal().exists()


@pytest.mark.usefixtures("form")
def test_a_stamp_that_waited_for_another_stamp_is_refused() -> None:
    run, held = running()

    def stamp_directly() -> None:
        step = run.journal().model.of(run, held, call("first"), 1, state=StepState.STARTED)
        step.save()
        AgentRun.objects.filter(pk=run.pk).write_guarded(pending_effect=WRITE, pending_step=step)

    stamp = second_comes_while(
        stamp_directly, lambda: run.mark_pending_effect(held, call("second"))
    )
    with pytest.raises(TransitionRefused, match="one write at a time"):
        stamp.outcome()
    assert [step.key for step in run.journal()] == ["first"]


@pytest.mark.usefixtures("form")
def test_a_record_that_waited_for_a_cancel_tells_of_it() -> None:
    run, held, step = fenced()
    record = second_comes_while(
        lambda: run.cancel(by="somebody"),
        lambda: run.record_step(held, call(), returned(), step),
    )
    assert record.outcome() is True
    row = reread(run)
    assert (row.status, row.pending_effect, row.pending_step_id) == (RunStatus.RUNNING, "", None)


@pytest.mark.usefixtures("form")
def test_a_record_that_waited_for_a_renewal_renews_after_it() -> None:
    run, held, step = fenced()
    record = second_comes_while(
        lambda: AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=from_now(-1)),
        lambda: run.record_step(held, call(), returned(), step),
    )
    assert record.outcome() is False
    assert not AgentRun.objects.stale().exists()
    assert step_of(run).state == StepState.RECORDED


@pytest.mark.usefixtures("form")
def test_a_second_attempt_that_waited_for_late_evidence_is_refused() -> None:
    run, old, step = fenced()
    expire(run)
    reap(run)
    row = reread(run)
    row.resolve(
        Resolution.DID_NOT_HAPPEN,
        by="somebody",
        reason="seen in the log",
        digest=row.resolution_digest(),
        worker_may_act_confirmed=True,
    )
    make_due(run)
    _run, new = claim(run)
    stamp = second_comes_while(
        lambda: run.add_late_evidence(old, step, returned({"id": 7})),
        lambda: run.mark_pending_effect(new, call(attempt=2)),
    )
    with pytest.raises(LeaseLost, match="landed"):
        stamp.outcome()
    assert reread(run).termination_reason == "interrupted_write"


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    "act",
    {
        "renew": lambda run, held: run.renew(held),
        "stamp": lambda run, held: run.mark_pending_effect(held, call()),
        "record a read": lambda run, held: run.record_step(held, call("read", READ), returned()),
    }.items(),
    ids=lambda named: named[0],
)
def test_a_lease_begins_when_its_owner_has_the_row(act: Any) -> None:
    run, held = running()
    assert_lease_begins_with_the_lock(run, lambda: act[1](run, held))


@pytest.mark.usefixtures("form")
def test_the_lease_of_a_recorded_write_begins_when_its_owner_has_the_row() -> None:
    run, held, step = fenced()
    assert_lease_begins_with_the_lock(run, lambda: run.record_step(held, call(), returned(), step))


def assert_lease_begins_with_the_lock(run: AgentRun, act: Callable[[], Any]) -> None:
    waiting = Rival(act)
    with holding(lambda: expire(run)):
        waiting.start()
        wait_until(waiting.waits_for_a_lock, what="the owner to wait for the row")
        still_waited = database_time()
    waiting.outcome()
    lease = timedelta(seconds=conf.LEASE_SECONDS)
    ends = reread(run).lease_expires_at
    assert ends is not None
    assert ends >= still_waited + lease


def database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [moment] = cursor.fetchone()
    assert isinstance(moment, datetime)
    return moment
