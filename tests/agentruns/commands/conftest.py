from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
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
