from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from agentruns import reencryption
from agentruns.guard import lock
from agentruns.models import AgentRun, Step
from agentruns.reencryption import reencrypt
from tests.agentruns.cases import completed, queued
from tests.agentruns.test_encryption import NEW, OLD, SECRET, agent, damage, keys, stored
from tests.factories import executed, snapshot

from .conftest import Commands


@pytest.fixture
def plain_and_old(transactional_db: None) -> None:
    """Rows from before there was a key, and rows under the old one."""
    executed(agent, SECRET)
    with keys(OLD):
        executed(agent, SECRET)


@pytest.mark.usefixtures("plain_and_old")
def test_a_key_is_rotated_and_the_old_one_taken_out(command: Commands) -> None:
    with keys(NEW, OLD):
        before = {run.pk: run.output for run in AgentRun.objects.all()}
        values = {pk: output.value for pk, output in before.items() if output is not None}
        said = command("reencrypt_agent_runs", "--batch-size", "1", "--json")
        assert said.failure is None
        report = said.json
        assert (report["held"], report["unreadable"]) == (0, [])
        assert report["written"] == len(stored())
    with keys(NEW):
        for run in AgentRun.objects.all():
            assert run.output is not None
            assert run.output.value == values[run.pk]
        again = command("reencrypt_agent_runs", "--json").json
        assert again["written"] == 0
    assert all(text.startswith("2:") for text in stored().values())


@pytest.mark.usefixtures("plain_and_old")
def test_encryption_is_ended(command: Commands) -> None:
    with keys("", OLD):
        assert command("reencrypt_agent_runs").failure is None
    assert all(text.startswith("1:") for text in stored().values())
    with keys(""):
        assert command("reencrypt_agent_runs", "--json").json["written"] == 0


@pytest.mark.usefixtures("plain_and_old")
def test_without_the_key_nothing_is_written_and_the_values_are_named(command: Commands) -> None:
    before = stored()
    with keys(""):
        said = command("reencrypt_agent_runs", "--json")
    assert stored() == before
    encrypted = [text for text in before.values() if text.startswith("2:")]
    assert len(said.json["unreadable"]) == len(encrypted) > 0


@pytest.mark.usefixtures("plain_and_old")
def test_without_any_key_it_is_refused(command: Commands) -> None:
    before = stored()
    failure = command("reencrypt_agent_runs").failure
    assert failure is not None
    assert failure.returncode == 2
    assert "ENCRYPTION_KEYS is empty" in str(failure)
    assert stored() == before


@pytest.mark.usefixtures("plain_and_old")
def test_a_dry_run_writes_nothing(command: Commands) -> None:
    before = stored()
    with keys(NEW, OLD):
        said = command("reencrypt_agent_runs", "--dry-run")
    assert f"would be written: {len(before)}" in said.text
    assert stored() == before


@pytest.mark.usefixtures("plain_and_old")
def test_says_how_far_it_is(command: Commands) -> None:
    with keys(NEW, OLD):
        said = command("reencrypt_agent_runs", "--batch-size", "1")
        quiet = command("reencrypt_agent_runs", "--verbosity", "0")
    first = AgentRun.objects.earliest("pk")
    assert f"agentrun up to {first.pk}: 1 rows" in said.errors
    assert quiet.errors == ""


def test_only_the_payload_changes(command: Commands) -> None:
    run = completed()
    columns = {"request", "output", "usage", "arguments", "result", "late_result", "data"}

    def others() -> list[object]:
        return [
            {name: value for name, value in row.items() if name not in columns}
            for rows in snapshot(run)
            for row in rows
        ]

    before = others()
    with keys(NEW):
        command("reencrypt_agent_runs")
    assert others() == before


@pytest.mark.usefixtures("plain_and_old")
def test_what_cannot_be_read_is_named_and_left_as_it_is(command: Commands) -> None:
    damage("agentruns_step", "result", "2:damaged")
    with keys(NEW, OLD):
        said = command("reencrypt_agent_runs", "--json")
    unreadable = said.json["unreadable"]
    assert {(value["table"], value["column"]) for value in unreadable} == {("step", "result")}
    assert {value["pk"] for value in unreadable} == set(Step.objects.values_list("pk", flat=True))
    assert f"{len(unreadable)} values can't be read" in str(said.failure)
    kept = [text for key, text in stored().items() if key.endswith(" result")]
    assert set(kept) == {"2:damaged"}


@pytest.mark.server
def test_rows_that_somebody_holds_are_left_for_another_time(command: Commands) -> None:
    held, free = queued(request=SECRET), queued(request=SECRET)
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                list(lock(AgentRun.objects.filter(pk=held.pk)))
                locked.set()
                done.wait(30)
        finally:
            connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert locked.wait(30)
        with keys(NEW):
            said = command("reencrypt_agent_runs", "--json")
    finally:
        done.set()
        holder.join()
    assert said.json["held"] == 1
    assert "1 rows were held" in str(said.failure)
    texts = stored()
    assert texts[f"AgentRun {held.pk} request"].startswith("1:")
    assert texts[f"AgentRun {free.pk} request"].startswith("2:")


def test_one_that_dies_is_begun_again(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        queued(request=SECRET)
    batches: list[int] = []

    def die(table: str, pk: int, report: reencryption.ReencryptionReport) -> None:
        batches.append(pk)
        if len(batches) == 2:
            raise SystemExit

    with keys(NEW):
        with pytest.raises(SystemExit):
            reencrypt(batch_size=1, progress=die)
        assert len([text for text in stored().values() if text.startswith("2:")]) == 2
        assert reencrypt(batch_size=1).written == 1


@pytest.mark.usefixtures("transactional_db")
def test_rows_are_held_for_no_longer_than_some_characters_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [queued(request="x" * 10).pk for _ in range(3)]
    big = queued(request="x" * 5_000).pk
    monkeypatch.setattr(reencryption, "CHARACTERS_AT_ONCE", 1_000)
    parts = list(reencryption._in_parts(AgentRun, [*small, big]))
    assert parts == [small, [big]]
