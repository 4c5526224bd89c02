from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import DataError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from agentruns import setreaper
from agentruns.enums import TerminationReason
from agentruns.fields import Payload
from agentruns.models import AgentRun, Event, Step
from agentruns.models.stopping import lease_lost
from agentruns.reaper import MOST_LISTED, sweep
from agentruns.signals import event_recorded
from agentruns.verdict import Action, Verdict
from tests.factories import (
    REPEATABLE,
    WRITE,
    call,
    claim,
    empty_fence_by_hand,
    expire,
    fenced,
    make_due,
    queued,
    reap,
    reread,
    running,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def cancelled() -> AgentRun:
    run, *_rest = fenced(REPEATABLE)
    run.cancel(by="somebody")
    return run


def spent() -> AgentRun:
    run, _held = running()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=3)
    return run


def emptied_by_hand() -> AgentRun:
    run, *_rest = fenced(WRITE)
    empty_fence_by_hand(run)
    return run


def uncertain_and_emptied_by_hand() -> AgentRun:
    run = emptied_by_hand()
    Step.objects.filter(run=run).update(state="uncertain")
    return run


def twice_in_doubt() -> AgentRun:
    run, held, _step = fenced(WRITE)
    Step.of(run, held, call("another"), 1, state="started").save()
    empty_fence_by_hand(run)
    return run


def under_another_fence() -> AgentRun:
    run, *_rest = fenced(WRITE)
    AgentRun.objects.filter(pk=run.pk).write_guarded(pending_effect=REPEATABLE)
    return run


def spent_in_a_repeatable_write() -> AgentRun:
    run, *_rest = fenced(REPEATABLE)
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=3)
    return run


def recorded_under_its_fence() -> AgentRun:
    run, *_rest = fenced(WRITE)
    Step.objects.filter(run=run).update(state="recorded", recorded_key=F("key"))
    return run


def claimed_again_by_another() -> AgentRun:
    run, _held = running()
    expire(run)
    reap(run)
    make_due(run)
    claim(run, "another %s:host:2:11111111")
    return run


def requeued_before() -> AgentRun:
    run, _held = running()
    AgentRun.objects.filter(pk=run.pk).write_guarded(requeue_count=1)
    return run


STALE: dict[str, Callable[[], AgentRun]] = {
    "plain": lambda: running()[0],
    "in a write": lambda: fenced(WRITE)[0],
    "in a repeatable write": lambda: fenced(REPEATABLE)[0],
    "cancelled": cancelled,
    "spent": spent,
    "synchronous": lambda: running(mode="synchronous")[0],
    "without a request": lambda: running(request=None)[0],
    "emptied by hand": emptied_by_hand,
    "uncertain and emptied by hand": uncertain_and_emptied_by_hand,
    "twice in doubt": twice_in_doubt,
    "under another fence": under_another_fence,
    "spent in a repeatable write": spent_in_a_repeatable_write,
    "recorded under its fence": recorded_under_its_fence,
    "claimed again by another": claimed_again_by_another,
}
EVERY_KIND = [*STALE.values(), requeued_before]
# What differs between any two runs: keys, moments, and the jitter of a delay.
OWN = {"id", "uuid", "run_id", "pending_step_id", "idempotency_key", "digest_key", "digest"}


def comparable(name: str, value: Any) -> Any:
    if isinstance(value, Payload):
        return value.value
    return (value is not None) if name.endswith("_at") else value


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: comparable(name, value) for name, value in row.items() if name not in OWN}


def by_sets(*runs: AgentRun, sets: setreaper.SetReaper | None = None) -> list[Any]:
    """Reap these neighbours, and say which were, with their verdicts."""
    first = min(run.pk for run in runs)
    return (sets or setreaper.SetReaper()).reap(first - 1, len(runs), named=True).runs


def everything(run: AgentRun) -> Any:
    events = list(run.history().order_by("pk"))
    return (
        plain(AgentRun.objects.filter(pk=run.pk).values().get()),
        [plain(step) for step in Step.objects.filter(run=run).order_by("pk").values()],
        [(event.kind, event.actor, event.epoch, sorted(event.details)) for event in events],
        [
            {
                k: v
                for k, v in event.details.items()
                if k not in ("delay_seconds", "lease_expired_at")
            }
            for event in events
        ],
        reread(run).pending_step_id is not None,
    )


KEYS = [[], [Fernet.generate_key().decode()]]


@pytest.mark.parametrize("keys", KEYS, ids=["plain", "encrypted"])
def test_a_set_writes_what_row_by_row_does(settings: Any, keys: list[str]) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "ENCRYPTION_KEYS": keys}
    for name, make in STALE.items():
        row_by_row, in_a_set = make(), make()
        expire(row_by_row)
        expire(in_a_set)
        verdict = reap(row_by_row)
        [(judged, same)] = by_sets(in_a_set)
        assert (judged.uuid, same) == (str(in_a_set.uuid), verdict), name
        assert everything(in_a_set) == everything(row_by_row), name
        delay = reread(in_a_set).available_at - AgentRun.objects.get(pk=in_a_set.pk).created_at
        assert delay.total_seconds() >= 0


def test_a_batch_of_all_kinds_is_a_few_statements() -> None:
    runs = [make() for make in STALE.values() for _ in range(3)]
    for run in runs:
        expire(run)
    sets = setreaper.SetReaper()
    with CaptureQueriesContext(connection) as sent:
        judged = by_sets(*runs, sets=sets)
    assert [run.pk for run, _verdict in judged] == [run.pk for run in runs]
    # A transaction's two, and one that learns of the kinds.
    assert len(sent) == 4, [query["sql"][:60] for query in sent]


def test_in_a_batch_each_run_gets_what_is_its_own() -> None:
    one_by_one = [make() for make in EVERY_KIND]
    in_a_set = [make() for make in EVERY_KIND]
    for run in [*one_by_one, *in_a_set]:
        expire(run)
    for run in one_by_one:
        reap(run)
    by_sets(*in_a_set)
    for one, other in zip(one_by_one, in_a_set, strict=True):
        assert everything(other) == everything(one)


def test_in_a_batch_each_run_waits_for_its_own_delay() -> None:
    runs = [running()[0], requeued_before(), running()[0], requeued_before()]
    for run in runs:
        expire(run)
    by_sets(*runs)
    began = {reread(run).available_at - timedelta(seconds=delay_of(run)) for run in runs}
    # The delays in the history are rounded to a millisecond; the statement is one.
    assert max(began) - min(began) <= timedelta(milliseconds=1)
    assert len({delay_of(run) for run in runs}) > 1


def test_in_a_batch_each_run_has_a_jitter_of_its_own(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "RETRY_BACKOFF_SECONDS": 100}
    settings.AGENTRUNS |= {"RETRY_BACKOFF_MAX_SECONDS": 100}
    runs = [running()[0] for _ in range(10)]
    for run in runs:
        expire(run)
    by_sets(*runs)
    delays = {delay_of(run) for run in runs}
    assert len(delays) > 1
    assert all(50 <= delay <= 100 for delay in delays)


# The whole of a second, and what ends in zeros: Python writes neither as PostgreSQL does.
MOMENTS = ["2020-01-01 00:00:00+00", "2020-07-01 12:34:56.5+00", "2020-07-01 12:34:56.000001+00"]


def keep(settings: Any, keys: list[str], **conf: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "ENCRYPTION_KEYS": keys, **conf}


@pytest.mark.parametrize("backoff", [0, 0.05, 1234.5678])
@pytest.mark.parametrize("keys", KEYS, ids=["plain", "encrypted"])
def test_its_history_is_written_to_the_letter(
    settings: Any, keys: list[str], backoff: float
) -> None:
    keep(settings, keys, RETRY_BACKOFF_SECONDS=backoff, RETRY_BACKOFF_MAX_SECONDS=backoff)
    runs = [make() for make in EVERY_KIND for _ in MOMENTS]
    for run, moment in zip(runs, itertools.cycle(MOMENTS)):
        AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=moment)
    leases = {run.pk: reread(run).lease_expires_at for run in runs}
    by_sets(*runs)
    for run in runs:
        lost, ended = last_lines(run)
        assert text_of(lost.data) == text_of(Payload.of(lease_lost(leases[run.pk])))
        assert text_of(ended.data) == text_of(Payload.of(ended.details) if ended.details else None)
        assert isinstance(ended.details.get("delay_seconds", 0.0), float)
        assert lost.data is not None
        assert lost.data.text.startswith("2:" if keys else "1:")


def last_lines(run: AgentRun) -> list[Event]:
    return list(run.history().order_by("pk"))[-2:]


def text_of(payload: Payload | None) -> str | None:
    return None if payload is None else payload.as_json


def test_without_time_zones_the_end_of_a_lease_is_written_without_one(settings: Any) -> None:
    settings.USE_TZ = False
    run, *_rest = running()
    expire(run)
    lease = reread(run).lease_expires_at
    by_sets(run)
    assert run.history().get(kind="lease_lost").details == lease_lost(lease)
    assert "+" not in lease_lost(lease)["lease_expired_at"]


@pytest.mark.parametrize("named", [True, False])
def test_a_row_that_python_cannot_read_fails_its_batch(named: bool) -> None:
    run, _held = running()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentruns_agentrun SET lease_expires_at = '-infinity'")
    with pytest.raises(DataError):
        setreaper.SetReaper().reap(0, 10, named=named)
    assert AgentRun.objects.filter(pk=run.pk, status="running").exists()
    assert not run.history().filter(kind="lease_lost").exists()


def delay_of(run: AgentRun) -> float:
    event = run.history().get(kind="requeued")
    return float(event.details["delay_seconds"])


def test_a_batch_leaves_every_other_run_alone() -> None:
    below, named, above, alive = running()[0], running()[0], fenced(WRITE)[0], running()[0]
    for run in (below, named, above):
        expire(run)
    others = (below, above, alive)
    before = [(everything(run), reread(run).lease_expires_at) for run in others]
    batch = setreaper.SetReaper().reap(below.pk, 1, named=True)
    assert ([run.pk for run, _verdict in batch.runs], batch.last) == ([named.pk], named.pk)
    assert [(everything(run), reread(run).lease_expires_at) for run in others] == before


def test_where_nothing_is_stale_there_is_no_last_one() -> None:
    run, _held = running()
    assert setreaper.SetReaper().reap(0, 10) == (None, {}, [])
    expire(run)
    assert setreaper.SetReaper().reap(run.pk, 10) == (None, {}, [])


def test_a_kind_that_is_new_costs_no_other_run_its_place_in_the_batch() -> None:
    sets = setreaper.SetReaper()
    known, again, new = running()[0], running()[0], fenced(WRITE)[0]
    for run in (known, again, new):
        expire(run)
    assert [run.pk for run, _verdict in by_sets(known, sets=sets)] == [known.pk]
    assert [run.pk for run, _verdict in by_sets(again, new, sets=sets)] == [again.pk, new.pk]


def test_runs_are_counted_and_named_only_where_they_are_asked_for() -> None:
    runs = [running()[0], requeued_before(), fenced(WRITE)[0]]
    for run in runs:
        expire(run)
    batch = setreaper.SetReaper().reap(0, 10)
    interrupted = Verdict(Action.DEAD_LETTER, TerminationReason.INTERRUPTED_WRITE)
    assert batch == (runs[-1].pk, {Verdict(Action.REQUEUE): 2, interrupted: 1}, [])


def test_the_moment_of_a_requested_cancel_stays() -> None:
    run = cancelled()
    asked = reread(run).cancel_requested_at
    expire(run)
    by_sets(run)
    assert (reread(run).status, reread(run).cancel_requested_at) == ("cancelled", asked)


def test_a_run_that_was_renewed_is_not_reaped() -> None:
    run, held = running()
    expire(run)
    run.renew(held)
    assert by_sets(run) == []
    assert reread(run).status == "running"


@contextmanager
def listening() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def hear(sender: Any, **said: Any) -> None:
        heard.append((said["uuid"], str(said["kind"]), said["actor"], said["epoch"], said["data"]))

    event_recorded.connect(hear)
    try:
        yield heard
    finally:
        event_recorded.disconnect(hear)


def test_its_events_are_announced_when_they_are_committed(caplog: pytest.LogCaptureFixture) -> None:
    run, held = running()
    expire(run)
    with listening() as heard, caplog.at_level(logging.INFO, "agentruns"):
        with transaction.atomic():
            by_sets(run)
            assert heard == []
        lost, again = (event.details for event in last_lines(run))
        assert heard == [
            (run.uuid, "lease_lost", held.owner, 1, lost),
            (run.uuid, "requeued", "reaper", 1, again),
        ]
    assert any("requeued" in record.getMessage() for record in caplog.records)


def test_a_report_counts_all_and_names_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentruns import reaper

    monkeypatch.setattr(reaper, "MOST_LISTED", 2)
    for run in [queued() for _ in range(3)]:
        AgentRun.objects.claim(run.uuid, "worker")
        expire(run)
    report = sweep().as_dict()
    assert (report["requeued"], len(report["runs"]), report["not_listed"]) == (3, 2, 1)
    assert MOST_LISTED > 2
