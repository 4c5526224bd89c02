"""What every command has in common: its options, its errors and its exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import connection

from agentruns import registry
from agentruns.exceptions import AgentRunError
from agentruns.registry import RegisteredAgent
from tests.agentruns.cases import interrupted, queued, running
from tests.harness.manage import run_manage

from .conftest import FromShell

NAMES = sorted(name for name, app in get_commands().items() if app in ("agentruns", "nrllm"))


# By which a monitoring system knows that nothing was found out.
CODES_OF_THEIR_OWN = {"check_agent_runs": 3}


def actions(name: str) -> list[argparse.Action]:
    """The arguments that are a command's own: Django's stand in each."""
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    plain = BaseCommand().create_parser("manage.py", "plain")
    of_django = {action.dest for action in plain._actions}
    return [action for action in parser._actions if action.dest not in of_django]


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_says_what_it_is(name: str) -> None:
    without = [action.dest for action in actions(name) if not action.help]
    assert without == []
    assert "--json" in {option for action in actions(name) for option in action.option_strings}


@pytest.mark.parametrize("name", NAMES)
def test_no_option_is_abbreviated(from_shell: FromShell, name: str) -> None:
    said = from_shell(name, "--jso")
    assert (said.code, said.out) == (CODES_OF_THEIR_OWN.get(name, 2), "")


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_the_command_line_is_json_with_json(from_shell: FromShell, name: str) -> None:
    said = from_shell(name, "--json", "--nonsense")
    assert (said.code, said.out) == (CODES_OF_THEIR_OWN.get(name, 2), "")
    error = json.loads(said.errors)["error"]
    assert error["type"] == "UsageError"
    assert "nonsense" in error["message"] or "required" in error["message"]


NOBODY = "00000000-0000-0000-0000-000000000000"
REFUSED: list[tuple[list[str], str, str]] = [
    (["show_agent_run", "no-uuid"], "RunNotFound", "is not a uuid"),
    (["show_agent_run", NOBODY], "RunNotFound", "there is no run"),
    (["cancel_agent_run", NOBODY], "RunNotFound", "there is no run"),
    (["resolve_agent_run", NOBODY], "RunNotFound", "there is no run"),
    (["decide_agent_run", NOBODY], "RunNotFound", "there is no run"),
    (["enqueue_agent_run", "nobody\x1b[2J"], "UnknownAgent", "\x1b[2J"),
    (["crash_agent_run", "nobody"], "UnknownAgent", "nobody"),
    (["crash_agent_run", "echo", "--setup", "no.such"], "CommandError", "can't be imported"),
    (["list_agent_runs", "--agent", "nobody"], "NoSuchAgent", "no run is of an agent 'nobody'"),
    (["list_tool_effects", "nobody"], "CommandError", "nobody"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED, ids=lambda said: str(said[0]))
def test_what_is_refused_has_an_exit_code_and_is_json_with_json(
    from_shell: FromShell, arguments: list[str], kind: str, message: str
) -> None:
    said = from_shell(*arguments, "--json")
    assert (said.code, said.out) == (1, "")
    error = json.loads(said.errors)["error"]
    assert error["type"] == kind
    assert message in error["message"] or repr(message)[1:-1] in error["message"]
    text = from_shell(*arguments)
    assert text.code == 1
    assert text.errors.startswith("CommandError: ")
    assert len(text.errors.splitlines()) == 1
    assert "\x1b" not in text.errors


ABOUT = ["--by", "ada", "--reason", "x", "--digest", "old"]
WRONG_USAGE: list[tuple[list[str], str]] = [
    (["list_agent_runs", "--limit", "0"], "argument --limit: 0 is not above zero"),
    (["purge_agent_runs", "--settled-days", "1e12"], "1e12 days are more than a hundred years"),
    (["purge_agent_runs", "--settled-days", "-3"], "-3 is not a number of days"),
    (["reap_stale_agent_runs", "--every", "1e300"], "1e300 seconds are more than a hundred years"),
    (["enqueue_agent_run", "echo", "--delay-seconds", "1e12"], "more than a hundred years"),
    (["list_agent_runs", "--status", "done"], "argument --status: invalid choice"),
    (["check_agent_runs", "--max-due-age", "1x"], "'1x' is no length of time"),
    (["check_agent_runs", "--max-due-age", "1x"], "(s, m, h or d)"),
    (["resolve_agent_run", NOBODY, "left", "--reason", "x"], "a verdict needs --by, --digest"),
    (["resolve_agent_run", NOBODY, "left", "--by", "a", "--digest", "d"], "needs --reason"),
    (["resolve_agent_run", NOBODY, "happened", *ABOUT], "'happened' needs --result"),
    (["resolve_agent_run", NOBODY, "left", *ABOUT, "--result", "1"], "--result is for 'happened'"),
    (["decide_agent_run", NOBODY, "ask"], "--approve or --deny for an approval, --answer for"),
    (["decide_agent_run", NOBODY, "--approve"], "needs the step"),
    (["decide_agent_run", NOBODY, "ask", "--approve", "--by", "a"], "a decision needs --digest"),
    (["decide_agent_run", NOBODY, "ask", "--deny", "--digest", "a"], "a decision needs --by"),
    (["enqueue_agent_run", "echo", "--request", "hello"], "is not JSON"),
    (["enqueue_agent_run", "echo", "--request", "@/no/such/file"], "can't be read"),
    (["enqueue_agent_run", "picky"], "this agent needs --request: say something"),
    (["purge_agent_runs"], "give --settled-days, --unfinished-days or both"),
    (["install_purge_schedule"], "give --settled-days, --unfinished-days or both"),
    (["hold_agent_runs"], "look with --dry-run"),
    (["hold_agent_runs", "--yes"], "--yes needs --by, --reason"),
    (["reencrypt_agent_runs"], "ENCRYPTION_KEYS is empty: nothing is encrypted"),
    (["fail_agent_run", NOBODY], "required: --by, --reason"),
    (["move_agent_run", NOBODY, "--by", "ada"], "required: --to"),
]


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that can't begin without a request."""

    def refuse(request: Any) -> None:
        if request is None:
            raise AgentRunError("say something")

    found = RegisteredAgent("picky", lambda segment: None, refuse_request=refuse)
    monkeypatch.setattr(registry, "_agents", {**registry._agents, "picky": found})


@pytest.mark.usefixtures("picky")
@pytest.mark.parametrize(("arguments", "message"), WRONG_USAGE, ids=lambda said: str(said[0]))
def test_a_wrong_command_line_ends_with_two_and_is_one_line(
    from_shell: FromShell, arguments: list[str], message: str
) -> None:
    text, code = from_shell(*arguments), CODES_OF_THEIR_OWN.get(arguments[0], 2)
    assert (text.code, text.out) == (code, "")
    assert text.errors.startswith("UsageError: ")
    assert message in text.errors
    assert text.errors.endswith(f"; see manage.py {arguments[0]} --help\n")
    assert len(text.errors.splitlines()) == 1
    said = from_shell(*arguments, "--json")
    assert (said.code, said.out) == (code, "")
    error = json.loads(said.errors)["error"]
    assert error["type"] == "UsageError"
    assert message in error["message"]
    assert not error["message"].startswith("Error")


AWAY: dict[str, Any] = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}


def test_a_database_that_is_away_is_an_error_in_json(transactional_db: None) -> None:
    said = run_manage("show_agent_run", NOBODY, "--json", **AWAY)
    assert (said.returncode, said.stdout) == (1, "")
    assert json.loads(said.stderr)["error"]["type"] == "OperationalError"


def test_a_database_that_is_away_is_one_line(transactional_db: None) -> None:
    said = run_manage("show_agent_run", NOBODY, **AWAY)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("OperationalError: ")
    assert len(said.stderr.splitlines()) == 1
    assert "migrate" not in said.stderr


@pytest.mark.server
def test_the_statement_that_failed_is_not_quoted(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE agentruns_agentrun RENAME TO agentruns_gone")
    try:
        said = run_manage("list_agent_runs")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE agentruns_gone RENAME TO agentruns_agentrun")
    assert said.stderr.startswith("ProgrammingError: ")
    assert "agentruns_agentrun" in said.stderr
    assert "LINE 1" not in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_tables_that_are_missing_are_to_be_migrated(transactional_db: None, tmp_path: Path) -> None:
    empty: dict[str, Any] = {"DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
    said = run_manage("list_agent_runs", **empty)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("OperationalError: no such table: ")
    assert said.stderr.endswith("run manage.py migrate\n")
    assert len(said.stderr.splitlines()) == 1
    as_json = run_manage("list_agent_runs", "--json", **empty)
    assert json.loads(as_json.stderr)["error"]["message"].endswith("run manage.py migrate")


def test_a_refused_verdict_keeps_its_kind(from_shell: FromShell) -> None:
    run = interrupted()
    about = ["--by", "ada", "--reason", "x", "--digest", "old", "--json"]
    said = from_shell("resolve_agent_run", str(run.uuid), "left", *about)
    assert said.code == 1
    assert json.loads(said.errors)["error"]["type"] == "TransitionRefused"


def test_text_for_a_request_is_to_be_quoted(from_shell: FromShell) -> None:
    said = from_shell("enqueue_agent_run", "echo", "--request", "it's")
    assert """a text stands in double quotes: '"it'"'"'s"'""" in said.errors


def test_what_succeeds_ends_with_zero(from_shell: FromShell) -> None:
    run = queued()
    for arguments in (["list_agent_runs"], ["show_agent_run", str(run.uuid)]):
        assert from_shell(*arguments).code == 0
        assert json.loads(from_shell(*arguments, "--json").out)


def test_a_refusal_names_the_run_once(from_shell: FromShell) -> None:
    run = running()[0]
    said = from_shell("fail_agent_run", str(run.uuid), "--by", "ada", "--reason", "x")
    assert said.code == 1
    assert said.out == f"run {run.uuid} is running; only a queued one is failed\n"
