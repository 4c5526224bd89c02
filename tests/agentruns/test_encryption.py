"""Payloads at rest: encrypted beside plain ones, under keys that change, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from agentruns import api, registry
from agentruns.enums import EventKind, Resolution, StepKind, StepOutcome
from agentruns.exceptions import PayloadError, PayloadUnreadable, TransitionRefused
from agentruns.fields import Payload
from agentruns.models import AgentRun, Event, Step
from agentruns.models.step import Ending
from agentruns.reencryption import TABLES, _columns
from agentruns.registry import RegisteredAgent, Verifier
from agentruns.segment import Segment
from agentruns.verification import verify
from tests.agentruns.cases import asking, conf, interrupted
from tests.factories import (
    READ,
    WRITE,
    call,
    claim,
    dead_lettered_write,
    execute_again,
    executed,
    fenced,
    queued,
    reread,
    returned,
    step_of,
)

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
SECRET = "the number is 4711"


@contextmanager
def keys(*given: str, **values: Any) -> Iterator[None]:
    with conf(ENCRYPTION_KEYS=list(given), **values):
        yield


def stored() -> dict[str, str]:
    """Every stored payload, by table, primary key and column, as the database has it."""
    found: dict[str, str] = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            for name in _columns(table):
                column = connection.ops.quote_name(name)
                cursor.execute(f"SELECT id, {column} FROM {table._meta.db_table}")
                found |= {
                    f"{table.__name__} {pk} {name}": text for pk, text in cursor.fetchall() if text
                }
    return found


def damage(table: str, column: str, text: str = "2:gAAAAAdamaged") -> None:
    """Write over a column of every row, as somebody with a database shell does."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {connection.ops.quote_name(column)} = %s", [text])


def agent(segment: Segment) -> Any:
    read = segment.step("read", lambda key: [SECRET], effect=READ, arguments={"of": SECRET})
    sent = segment.step("write", lambda key: {"sent": SECRET}, effect=WRITE, arguments=read)
    segment.usage = {"note": SECRET}
    return [segment.request, sent]


def test_nothing_that_was_said_is_in_the_database() -> None:
    with keys(NEW):
        run = executed(agent, SECRET)
        assert run.status == "completed", run.error_message
        assert api.status(run.uuid).output == [SECRET, {"sent": SECRET}]
    texts = stored()
    assert {key.split()[2] for key in texts} == {
        "request", "output", "usage", "digest_key", "arguments", "result",
    }  # fmt: skip
    assert all(text.startswith("2:") for text in texts.values())
    assert not any("4711" in text for text in texts.values())


def test_parked_state_and_evidence_are_encrypted() -> None:
    def asks(segment: Segment) -> Any:
        return segment.wait_for_input("question", {"sure": SECRET})

    with keys(NEW):
        run = executed(asks, SECRET)
        api.submit_input(run.uuid, "question", SECRET, by="ada")
        late, claimed, step = fenced()
        late.cancel(by="ada")
        late.hold(by="ada", reason="a copy")
        late.add_late_evidence(claimed, step, returned(SECRET))
        assert execute_again(reread(run), asks).status == "completed"
    texts = stored()
    assert any(key.endswith(" late_result") for key in texts)
    assert any(key.startswith("Event ") for key in texts)
    assert all(text.startswith("2:") for text in texts.values())


def test_without_a_key_payloads_are_plain() -> None:
    executed(agent, SECRET)
    assert all(text.startswith("1:") for text in stored().values())


def test_plain_and_encrypted_rows_stand_side_by_side() -> None:
    calls: list[str] = []

    def says(name: str, value: str) -> str:
        calls.append(name)
        return value

    def two(segment: Segment) -> Any:
        first = segment.step("first", lambda key: says("first", SECRET), effect=READ)
        if len(calls) == 1:
            raise ConnectionResetError
        second = segment.step("second", lambda key: says("second", "b"), effect=READ)
        return [segment.request, first, second]

    run = executed(two, SECRET)
    assert run.status == "queued"
    calls.append("the key comes")
    with keys(NEW):
        run = execute_again(run, two)
        assert run.status == "completed", run.error_message
        assert api.status(run.uuid).output == [SECRET, SECRET, "b"]
    assert calls == ["first", "the key comes", "second"]
    texts = stored()
    assert texts[f"AgentRun {run.pk} request"].startswith("1:")
    assert texts[f"AgentRun {run.pk} output"].startswith("2:")


def test_a_process_may_have_the_key_before_anybody_encrypts() -> None:
    """So that encryption begins, and ends, while processes of both kinds work."""
    with keys("", NEW):
        plain = queued(request=SECRET)
    with keys(NEW):
        secret = queued(request=SECRET)
    texts = stored()
    assert texts[f"AgentRun {plain.pk} request"].startswith("1:")
    assert texts[f"AgentRun {secret.pk} request"].startswith("2:")
    with keys("", NEW):
        for run in (plain, secret):
            request = AgentRun.objects.get(pk=run.pk).request
            assert request is not None
            assert request.value == SECRET


def test_a_new_key_encrypts_and_the_old_one_still_reads() -> None:
    with keys(OLD):
        old = queued(request=SECRET)
    with keys(NEW, OLD):
        new = queued(request=SECRET)
        for run in (old, new):
            request = AgentRun.objects.get(pk=run.pk).request
            assert request is not None
            assert request.value == SECRET
    with keys(OLD):
        request = AgentRun.objects.get(pk=new.pk).request
        assert request is not None
        with pytest.raises(PayloadUnreadable, match="key that is not configured"):
            _ = request.value


def test_equal_requests_are_equal_under_any_key() -> None:
    with keys(OLD):
        first = queued(request=SECRET, idempotency_key="7")
    with keys(NEW, OLD):
        again = AgentRun.objects.enqueue("agent", Payload.of(SECRET), idempotency_key="7")
    assert (again[0].pk, again[1]) == (first.pk, False)


def test_the_limit_is_that_of_the_value_and_not_of_its_ciphertext() -> None:
    with keys(NEW, MAX_PAYLOAD_BYTES=104):
        queued(request="x" * 100)
        with pytest.raises(PayloadError):
            Payload.of("x" * 101)


def test_evidence_of_what_is_recorded_already_is_no_news() -> None:
    with keys(NEW):
        run, claimed, step = fenced()
        run.record_step(claimed, call(step.key), returned(SECRET), step)
        run.add_late_evidence(claimed, step, returned(SECRET))
        assert step_of(run).late_at is None
        run.add_late_evidence(claimed, step, returned("something else"))
        assert step_of(run).late_at is not None


UNREADABLE: list[tuple[str, str, Callable[[Segment], Any]]] = [
    ("agentruns_agentrun", "request", lambda segment: segment.request),
    (
        "agentruns_step",
        "result",
        lambda segment: segment.step("read", lambda key: "again", effect=READ, arguments=1),
    ),
]


@pytest.mark.parametrize(("table", "column", "reads"), UNREADABLE)
@pytest.mark.parametrize("swallows", [False, True])
def test_a_damaged_value_fails_its_run_whatever_the_code_catches(
    table: str, column: str, reads: Callable[[Segment], Any], swallows: bool
) -> None:
    bodies: list[str] = []

    def first(segment: Segment) -> None:
        segment.step("read", lambda key: "value", effect=READ, arguments=1)
        raise ConnectionResetError

    def second(segment: Segment) -> Any:
        try:
            reads(segment)
        except Exception:
            if not swallows:
                raise
        return segment.step("write", lambda key: bodies.append("write"), effect=WRITE)

    with keys(NEW):
        run = executed(first, SECRET)
        damage(table, column)
        run = execute_again(run, second)
        assert (run.status, run.error_class, run.termination_reason) == (
            "failed",
            "PayloadUnreadable",
            "not_retryable",
        )
        assert "damaged" in run.error_message
        other = executed(agent, SECRET)
    assert bodies == []
    assert other.status == "completed"


def test_a_run_whose_key_was_thrown_away_fails_and_strands_nobody() -> None:
    with keys(OLD):
        run = queued(request=SECRET)
    with keys(NEW):
        row = execute_again(run, agent)
        assert (row.status, row.error_class) == ("failed", "PayloadUnreadable")
        assert api.events(run.uuid)[-1].kind is EventKind.DEAD_LETTERED
    with keys(NEW, OLD):
        api.retry(run.uuid, by="ada")
        assert execute_again(reread(run), agent).status == "completed"


def test_a_damaged_history_hides_no_run_and_stops_no_verdict() -> None:
    with keys(NEW):
        run = interrupted()
        damage("agentruns_event", "data")
        shown = api.events(run.uuid)[-1].data
        assert "damaged" in shown["unreadable"]
        # What it said is not known: the former worker may act until it is certainly gone.
        assert run.former_worker_may_act()
        run.resolve(Resolution.LEFT, by="ada", reason="?", digest=run.resolution_digest())
        assert reread(run).resolution == "left"


def test_a_destination_is_not_asked_about_arguments_that_cannot_be_read() -> None:
    def ask(doubt: Any) -> Any:
        raise AssertionError("it was asked")

    with keys(NEW):
        run, step = dead_lettered_write()
        Step.objects.filter(pk=step.pk).update(arguments=Payload("2:damaged"))
        registry.add(RegisteredAgent("agent", agent, verifiers={"write": Verifier(ask)}))
        try:
            verify(run.uuid)
        finally:
            del registry._agents["agent"]
        said = run.history().get(kind=EventKind.VERIFIED)
    assert said.run_id == run.pk
    assert step_of(run).testimony == "unknown"


def test_unusable_keys_write_nothing_plain() -> None:
    with keys("no key"), pytest.raises(ImproperlyConfigured, match="number 1"):
        queued(request=SECRET)
    assert not AgentRun.objects.exists()
    with keys(NEW):
        run = queued(request=SECRET)
    for given in ([], ["no key"]):
        with keys(*given):
            request = AgentRun.objects.get(pk=run.pk).request
            assert request is not None
            with pytest.raises(PayloadUnreadable):
                _ = request.value


def test_a_payload_that_was_read_is_written_back_as_it_is() -> None:
    with keys(NEW):
        run, claimed = claim(queued(request=SECRET))
        request = AgentRun.objects.get(pk=run.pk).request
        run.record_step(claimed, call("copy", READ), Ending(StepOutcome.RETURNED, request))
        result = step_of(run, "copy").result
        assert result is not None
        assert result.value == SECRET
    assert Event.objects.filter(run=run).count() == 2


def test_what_nobody_can_read_is_not_answered_and_may_be_denied_or_cancelled() -> None:
    with keys(NEW):
        question, call_to_approve = asking(), asking(StepKind.APPROVAL)
    digest = step_of(call_to_approve, "ask").digest
    for given in ([], [OLD]):
        with keys(*given):
            with pytest.raises(TransitionRefused, match="can't be read"):
                api.submit_input(question.uuid, "ask", "yes", by="ada")
            with pytest.raises(TransitionRefused, match="can't be read"):
                api.decide(call_to_approve.uuid, "ask", True, by="ada", digest=digest)
    assert not Step.objects.filter(state="recorded").exists()
    api.decide(call_to_approve.uuid, "ask", False, by="ada", digest=digest)
    api.cancel(question.uuid, by="ada")
    assert reread(call_to_approve).status == "queued"
    assert reread(question).status == "cancelled"
