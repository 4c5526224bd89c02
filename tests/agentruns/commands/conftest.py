from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command, execute_from_command_line
from django.core.management.base import CommandError


@dataclass
class Said:
    """What a command printed, and the error with which it ended."""

    text: str
    errors: str
    failure: CommandError | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Commands:
    """Runs commands as `manage.py` does, and takes up what they say."""

    def __call__(self, name: str, *arguments: str) -> Said:
        out, err = StringIO(), StringIO()
        failure = None
        try:
            call_command(name, *arguments, stdout=out, stderr=err)
        except CommandError as error:
            failure = error
        return Said(out.getvalue(), err.getvalue(), failure)


@pytest.fixture
def command(transactional_db: None) -> Commands:
    return Commands()


@dataclass(frozen=True)
class Ended:
    """What a shell sees of a command: what it printed, and its exit code."""

    out: str
    errors: str
    code: int


class FromShell:
    """Runs commands as a shell does, arguments and exit code included, without a new process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        code = 0
        try:
            execute_from_command_line(["manage.py", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        said = self._capsys.readouterr()
        return Ended(said.out, said.err, code)


@pytest.fixture
def from_shell(transactional_db: None, capsys: pytest.CaptureFixture[str]) -> FromShell:
    return FromShell(capsys)
