"""One thread renews the leases of all segments of a process, with one statement for all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.db.models.functions import Now

from agentruns import hotpath
from agentruns.fields import Payload
from agentruns.guard import Claim, from_now
from agentruns.heartbeat import Heartbeat, pulse
from agentruns.models import AgentRun
from agentruns.segment import Segment
from tests.factories import claim, expire, lose, make_due, queued, running, snapshot
from tests.harness.database import end_other_connections
from tests.races.rivals import holding
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PULSE = "agentruns-heartbeat"


@pytest.fixture
def conf(settings: Any) -> Any:
    def override(**values: float) -> None:
        settings.AGENTRUNS = {**settings.AGENTRUNS, **values}

    return override


@pytest.fixture(params=["portable", pytest.param("statement", marks=pytest.mark.postgres)])
def renewed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    form: str = request.param
    if form == "portable":
        monkeypatch.setattr(hotpath, "has_statements", lambda: False)
    return form


@contextmanager
def opened(*claims: tuple[AgentRun, Claim]) -> Iterator[list[Segment]]:
    """Segments of this process, open at the same time."""
    segments = [Segment(run, held) for run, held in claims]
    try:
        for segment in segments:
            segment.open()
        yield segments
    finally:
        for segment in segments:
            segment.close()


@contextmanager
def statements_of_the_pulse() -> Iterator[list[tuple[str, Any]]]:
    """What is sent on the connections of the heartbeat's thread that are opened in this block."""
    sent: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append((sql, params))
        return execute(sql, params, many, context)

    def listen(connection: Any, **_: Any) -> None:
        if threading.current_thread().name == PULSE:
            connection.execute_wrappers.append(note)

    connection_created.connect(listen)
    try:
        yield sent
    finally:
        connection_created.disconnect(listen)


def of(*runs: AgentRun) -> Any:
    return AgentRun.objects.filter(pk__in=[run.pk for run in runs])


def covered(*runs: AgentRun, seconds: float = 10) -> bool:
    return bool(of(*runs).filter(lease_expires_at__gt=from_now(seconds)).count() == len(runs))


def renewed_again(*runs: AgentRun) -> None:
    """Wait until each of them was renewed once more, without holding its row."""
    before = leases(*runs)

    def all_later() -> bool:
        return all(at > before[pk] for pk, at in leases(*runs).items())

    wait_until(all_later, what="a renewal of each")


def pulses() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(PULSE)]


def leases(*runs: AgentRun) -> dict[int, Any]:
    return dict(of(*runs).values_list("pk", "lease_expires_at"))


@pytest.mark.parametrize("number", [1, 20])
def test_a_beat_is_one_statement_for_all_segments(conf: Any, renewed_by: str, number: int) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    with statements_of_the_pulse() as sent:
        claims = [running() for _ in range(number)]
        runs = [run for run, _held in claims]
        with opened(*claims):
            begun = len(sent)
            renewed_again(*runs)
            # Not three renewals waited for: what lands in one of them may have been sent before it.
            wait_until(lambda: len(sent) >= begun + 6, what="more beats")
            beats = sent[begun:]
            [thread] = pulses()
    thread.join(timeout=20)
    assert not thread.is_alive()
    if renewed_by == "statement":
        assert {len(params[0]) for _sql, params in beats} == {number}
    else:
        # One locks the rows and judges them, one renews them.
        kinds = [sql.split(" ", 1)[0] for sql, _params in beats if not sql.startswith("BEGIN")]
        assert len(kinds) <= 2 * (kinds.count("UPDATE") + 1)
        assert set(kinds) == {"SELECT", "UPDATE"}


@pytest.mark.parametrize(
    "stranger",
    [
        lambda held: replace(held, epoch=held.epoch + 1),
        lambda held: replace(held, epoch=held.epoch - 1),
        lambda held: replace(held, owner=f"{held.owner}0"),
    ],
    ids=["a later epoch", "an earlier epoch", "another owner"],
)
def test_who_does_not_hold_a_run_renews_nothing(
    renewed_by: str, stranger: Callable[[Claim], Claim]
) -> None:
    (run, held), (other, held_too), (unasked, _held) = running(), running(), running()
    for one in (run, other, unasked):
        expire(one)
    before = snapshot(run), snapshot(unasked)
    assert hotpath.renew_all([stranger(held), held_too]) == {held_too}
    assert (snapshot(run), snapshot(unasked)) == before
    assert covered(other, seconds=0)


def test_a_run_that_ended_is_not_renewed(renewed_by: str) -> None:
    run, held = running()
    run.complete(held, Payload.of("done"))
    before = snapshot(run)
    assert hotpath.renew_all([held]) == set()
    assert snapshot(run) == before


def test_it_ends_with_the_last_segment_and_begins_with_the_next(conf: Any) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    for _round in range(2):
        first, second = running(), running()
        with opened(first):
            with opened(second):
                renewed_again(first[0], second[0])
            renewed_again(first[0])
        wait_until(lambda: not pulses(), what="the end of the thread")


def test_a_segment_that_began_does_not_wait_for_the_next_beat(conf: Any) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=50)
    first, second = running(), running()
    with opened(first):
        of(first[0], second[0]).write_guarded(lease_expires_at=Now())
        with opened(second):
            assert covered(second[0])
            assert not covered(first[0]), "nobody else is renewed for that"


@pytest.mark.server
def test_a_segment_that_begins_after_the_connection_died_has_its_first_beat(conf: Any) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=50)
    with opened(running()):
        end_other_connections()
        second = running()
        of(second[0]).write_guarded(lease_expires_at=Now())
        before = leases(second[0])
        with opened(second):
            assert leases(second[0])[second[0].pk] > before[second[0].pk]


def test_a_lost_lease_ends_its_own_segment_alone(conf: Any, renewed_by: str) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    lost, kept = running(), running()
    with opened(lost, kept) as (loser, keeper):
        lose(lost[0])
        wait_until(lambda: loser.heartbeat.lost is not None, what="a refused beat")
        before = snapshot(lost[0])
        renewed_again(kept[0])
        assert keeper.heartbeat.lost is None
        assert snapshot(lost[0]) == before


def test_a_zombie_beside_its_successor_is_told(conf: Any, renewed_by: str) -> None:
    """Both are segments of one run in one process: what renews the one does not keep the other."""
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    run, held = running()
    with opened((run, held)) as [zombie]:
        lose(run)
        make_due(run)
        with opened(claim(run)) as [successor]:
            wait_until(lambda: zombie.heartbeat.lost is not None, what="a refused beat")
            renewed_again(run)
            assert successor.heartbeat.lost is None


@pytest.mark.server
def test_a_row_that_is_held_keeps_no_other_from_being_renewed(conf: Any, renewed_by: str) -> None:
    """Until its lease is over: whoever holds the row ends it."""
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    blocked, free = running(), running()
    with opened(blocked, free) as (waits, goes_on):
        with holding(lambda: expire(blocked[0])):
            before = leases(blocked[0])
            for _beat in range(3):
                renewed_again(free[0])
            assert leases(blocked[0]) == before
            assert (waits.heartbeat.lost, goes_on.heartbeat.lost) == (None, None)
        wait_until(lambda: covered(blocked[0]), what="its renewal")
        assert waits.heartbeat.lost is None
        renewed_again(blocked[0])


@pytest.mark.postgres
def test_a_row_that_can_not_be_written_keeps_no_other_from_being_renewed(conf: Any) -> None:
    """Somebody altered it by hand, with the constraints off: each write to it is refused."""
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    broken, whole = running(), running()
    with opened(broken, whole), connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE agentruns_agentrun ADD CONSTRAINT by_hand"
            f" CHECK (id <> {broken[0].pk}) NOT VALID"
        )
        try:
            of(whole[0]).write_guarded(lease_expires_at=Now())
            wait_until(lambda: covered(whole[0]), what="a renewal")
        finally:
            cursor.execute("ALTER TABLE agentruns_agentrun DROP CONSTRAINT by_hand")
        renewed_again(broken[0], whole[0])


@pytest.mark.server
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_pulse_of_its_own(conf: Any) -> None:
    conf(LEASE_SECONDS=60, HEARTBEAT_SECONDS=0.05)
    ours, theirs = running(), queued()
    with opened(ours):
        renewed_again(ours[0])
        pid = os.fork()
        if pid == 0:
            beats_in_a_child(theirs)
        _pid, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        renewed_again(ours[0])
    assert of(theirs).get().status == "running"


def beats_in_a_child(run: AgentRun) -> None:
    """End this process with 0 if its own segment is renewed, and nothing of the parent's."""
    try:
        for name in connections:
            connections[name].connection = None  # the parent's
        assert not pulse._segments
        with opened(claim(run)):
            renewed_again(run)
            assert len(pulse._segments) == 1
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("settling", [True, False])
def test_only_a_run_that_is_not_being_settled_is_said_to_be_lost(
    settling: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run, held = running()
    segment = Heartbeat(run, held)
    segment.settling = settling
    run.complete(held, Payload.of("done"))
    segment.beat_alone()
    wait_until(lambda: not pulses(), what="the end of the beat")
    segment.stop()
    assert segment.lost is not None
    assert ("is completed" in caplog.text) is not settling
