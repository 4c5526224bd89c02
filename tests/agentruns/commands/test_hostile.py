"""Whatever a stranger wrote does nothing to the terminal in which a command shows it."""

from __future__ import annotations

import pytest

from agentruns import registry
from agentruns.models import AgentRun
from tests.agentruns.cases import conf
from tests.agentruns.hostile import CONTROLS, SHORT, TEXT, hostile_runs

from .conftest import FromShell


@pytest.fixture
def runs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, AgentRun]:
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
    return hostile_runs()


def commands(runs: dict[str, AgentRun]) -> list[list[str]]:
    """Every command that shows something, and every refusal that repeats what was typed."""
    uuids = [str(run.uuid) for run in runs.values()]
    about = ["--by", SHORT, "--digest", "of yesterday"]
    shown = [["show_agent_run", uuid, "--payloads"] for uuid in uuids]
    shown += [["resolve_agent_run", str(runs[name].uuid)] for name in ("doubtful", "late", "left")]
    shown += [["decide_agent_run", str(runs[name].uuid)] for name in ("approval", "question")]
    return [
        *shown,
        ["list_agent_runs"],
        ["list_agent_runs", "--agent", TEXT],
        ["list_agent_runs", "--status", TEXT],
        ["check_agent_runs", "--max-waiting-age", TEXT],
        ["hold_agent_runs", "--dry-run"],
        ["show_agent_run", TEXT],
        ["cancel_agent_run", TEXT],
        ["enqueue_agent_run", TEXT],
        ["enqueue_agent_run", SHORT, "--request", CONTROLS],
        ["enqueue_agent_run", SHORT, "--request", f"@{CONTROLS}"],
        ["decide_agent_run", str(runs["approval"].uuid), TEXT, "--approve", *about],
        ["resolve_agent_run", str(runs["doubtful"].uuid), "left", "--reason", TEXT, *about],
        ["resolve_agent_run", str(runs["doubtful"].uuid), TEXT],
        ["fail_agent_run", TEXT, str(runs["completed"].uuid), "--by", SHORT, "--reason", TEXT],
        ["move_agent_run", str(runs["completed"].uuid), "--by", SHORT, "--to", TEXT],
        ["list_tool_effects", TEXT],
        ["reap_stale_agent_runs", "--limit", TEXT],
        ["reap_stale_agent_runs", "--dry-run"],
        ["reencrypt_agent_runs", "--batch-size", TEXT],
    ]


def harmful(text: str) -> list[str]:
    return sorted({repr(c) for c in text if not (c.isprintable() or c == "\n")})


def test_the_text_of_every_command_is_harmless(
    from_shell: FromShell, runs: dict[str, AgentRun]
) -> None:
    for arguments in commands(runs):
        said = from_shell(*arguments)
        assert said.out or said.errors, arguments
        assert harmful(said.out + said.errors) == [], arguments[0]


def test_the_json_of_every_command_is_ascii(
    from_shell: FromShell, runs: dict[str, AgentRun]
) -> None:
    for arguments in commands(runs):
        said = from_shell(*arguments, "--json")
        assert (said.out + said.errors).isascii(), arguments[0]


def test_a_proposal_is_shown_harmlessly(from_shell: FromShell, runs: dict[str, AgentRun]) -> None:
    run = runs["doubtful"]
    about = ["--by", SHORT, "--reason", TEXT, "--digest", run.resolution_digest()]
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        assert from_shell("resolve_agent_run", str(run.uuid), "left", *about).code == 0
        said = from_shell("resolve_agent_run", str(run.uuid))
    assert "proposed left, because" in said.out
    assert harmful(said.out) == []
