from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.db.models.functions import Now

from agentruns.models import AgentRun

from .conftest import Commands


def test_enqueues_a_run_and_prints_its_uuid(command: Commands) -> None:
    said = command("enqueue_agent_run", "echo", "--request", '{"to": "Ada"}')
    run = AgentRun.objects.get()
    assert said.text == f"{run.uuid}\n"
    assert run.request is not None
    assert run.request.value == {"to": "Ada"}


def test_passes_on_who_asked_and_what_it_belongs_to(command: Commands) -> None:
    command("enqueue_agent_run", "echo", "--requested-by", "ada", "--correlation-id", "order 7")
    run = AgentRun.objects.get()
    assert (run.requested_by, run.correlation_id) == ("ada", "order 7")
    assert run.request is not None
    assert run.request.value is None


def test_the_same_idempotency_key_gives_the_same_run(command: Commands) -> None:
    arguments = ["enqueue_agent_run", "echo", "--idempotency-key", "k", "--json"]
    first, second = command(*arguments).json, command(*arguments).json
    assert (first["created"], second["created"]) == (True, False)
    assert first["uuid"] == second["uuid"]


def test_an_idempotency_key_with_another_request_is_an_error(command: Commands) -> None:
    arguments = ["enqueue_agent_run", "echo", "--idempotency-key", "k", "--request"]
    command(*arguments, "1")
    failure = command(*arguments, "2").failure
    assert "has another request" in str(failure)


def test_a_delayed_run_is_not_due_yet(command: Commands) -> None:
    command("enqueue_agent_run", "echo", "--delay-seconds", "3600")
    assert AgentRun.objects.filter(available_at__gt=Now(), woken_at=None).exists()
    assert not AgentRun.objects.due().exists()


def test_reads_the_request_from_a_file(command: Commands, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('["from", "a file"]')
    command("enqueue_agent_run", "echo", "--request", f"@{file}")
    request = AgentRun.objects.get().request
    assert request is not None
    assert request.value == ["from", "a file"]


def test_reads_the_request_from_standard_input(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("42"))
    command("enqueue_agent_run", "echo", "--request", "-")
    request = AgentRun.objects.get().request
    assert request is not None
    assert request.value == 42


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "no agent is registered as 'nobody' (registered: "),
        (["echo", "--request", "{not json"], "the argument is not JSON"),
        (["echo", "--request", "@/no/such/file"], "/no/such/file can't be read"),
        (["echo", "--correlation-id", "x" * 201], "201 characters"),
        (["echo", "--delay-seconds", "-1"], "zero or above"),
    ],
)
def test_says_what_is_wrong_and_enqueues_nothing(
    command: Commands, arguments: list[str], message: str
) -> None:
    assert message in str(command("enqueue_agent_run", *arguments).failure)
    assert not AgentRun.objects.exists()
