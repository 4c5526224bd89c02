"""docs/commands.md says of each command what the code says."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentruns.enums import StepKind
from agentruns.management import rendering
from agentruns.models import AgentRun
from tests.agentruns.cases import asking, failed, interrupted, queued
from tests.agentruns.test_encryption import keys

from .conftest import FromShell
from .test_command_line import NAMES, actions

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
ENTRY = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ENTRIES: dict[str, str] = dict(ENTRY.findall(PAGE.read_text(encoding="utf-8")))


def option(action: argparse.Action) -> str:
    """The first cell of an argument's row."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None:
        value = "..." if len(list(action.choices)) > 3 else "\\|".join(map(str, action.choices))
    if not action.option_strings:
        name = str(action.metavar or action.dest)
        value = value if action.choices else name
        return f"`{value}{'...' if action.nargs in ('+', '*') else ''}`"
    taken = "" if action.nargs == 0 else f" {value}"
    return f"`{action.option_strings[0]}{taken}`"


def rows(name: str) -> list[str]:
    """The rows of a command's table. `--json` stands in each, and is explained once."""
    return [
        f"| {option(action)} | {action.help}{' (required)' if needed(action) else ''} |"
        for action in actions(name)
        if action.dest != "json"
    ]


def needed(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.required


def test_every_command_has_an_entry_and_no_other_has() -> None:
    assert list(ENTRIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_its_arguments_are_those_of_the_code(name: str) -> None:
    written = [line for line in ENTRIES[name].splitlines() if line.startswith("| `")]
    assert written == rows(name)


def keys_said(name: str) -> list[set[str]]:
    """The keys of each JSON shape that an entry names."""
    shapes = re.findall(r"^JSON[^:]*: (.*?)\n(?:\n|\Z)", ENTRIES[name], re.MULTILINE | re.DOTALL)
    return [set(re.findall(r"`(\w+)`", shape)) for shape in shapes]


def resolving(run: AgentRun) -> list[str]:
    digest = run.resolution_digest()
    return [str(run.uuid), "left", "--by", "ada", "--reason", "x", "--digest", digest]


def deciding(run: AgentRun) -> list[str]:
    digest = run.journal().get().digest
    return [str(run.uuid), "ask", "--approve", "--by", "ada", "--digest", digest]


def calls(name: str) -> list[list[str]]:
    """A call for each JSON shape that an entry names, in its order."""
    made: dict[str, Any] = {
        "cancel_agent_run": lambda: [[str(queued().uuid)]],
        "check_agent_runs": lambda: [[]],
        "crash_agent_run": lambda: [["echo"]],
        "decide_agent_run": lambda: [
            [str(asking(StepKind.APPROVAL).uuid)],
            deciding(asking(StepKind.APPROVAL)),
        ],
        "enqueue_agent_run": lambda: [["echo"]],
        "fail_agent_run": lambda: [[str(queued().uuid), "--by", "ada", "--reason", "x"]],
        "hold_agent_runs": lambda: [["--dry-run"]],
        "install_purge_schedule": lambda: [["--settled-days", "1"], ["--remove"]],
        "install_reaper_schedule": lambda: [[], ["--remove"]],
        "list_agent_runs": lambda: [["--limit", "1"]],
        "list_tool_effects": lambda: [[]],
        "move_agent_run": lambda: [[str(failed().uuid), "--by", "ada", "--to", "2"]],
        "purge_agent_runs": lambda: [["--settled-days", "1"]],
        "reap_stale_agent_runs": lambda: [["--dry-run"]],
        "reencrypt_agent_runs": lambda: [["--dry-run"]],
        "retry_agent_run": lambda: [[str(failed().uuid), "--by", "ada"]],
        "resolve_agent_run": lambda: [[str(interrupted().uuid)], resolving(interrupted())],
        "show_agent_run": lambda: [[str(interrupted().uuid), "--payloads"]],
    }
    arguments: list[list[str]] = made[name]()
    return arguments


@pytest.mark.parametrize("name", NAMES)
def test_its_json_has_the_keys_that_are_named(from_shell: FromShell, name: str) -> None:
    queued()
    shapes, given = keys_said(name), calls(name)
    assert len(shapes) == len(given)
    for shape, arguments in zip(shapes, given, strict=True):
        # What is stored plain is so with this key, too, which one of the commands needs.
        with keys(""):
            said = json.loads(from_shell(name, *arguments, "--json").out)
        if isinstance(said, list):
            said = said[0] if said else dict.fromkeys(shape)
        assert set(said) == shape


def test_what_is_said_of_steps_and_events_holds() -> None:
    text = ENTRIES["show_agent_run"]
    for columns in (
        rendering.STEP_COLUMNS,
        ("fence", "by_verdict", "arguments", "result", "late_result"),
    ):
        assert set(columns) <= set(re.findall(r"`(\w+)`", text))
    assert {"kind", "at", "actor", "epoch", "data"} <= set(re.findall(r"`(\w+)`", text))


def test_the_exit_codes_and_the_shape_of_an_error_are_said() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for code in (0, 1, 2):
        assert f"| {code} |" in page
    assert '{"error": {"type": "RunNotFound", "message": "' in page
