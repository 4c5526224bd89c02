"""docs/guards.md lists the guards that `python -m tests.guards` takes out, and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.markdown import Page
from tests.servers.process import ROOT

from .__main__ import without
from .guards import GUARDS, Guard

ROWS = {row[0]: row for row in Page(ROOT / "docs/guards.md").rows()}

each_guard = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)


@each_guard
def test_it_is_in_the_code_once(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text(encoding="utf-8")
    changed = without(guard, text)
    assert changed != text
    compile(changed, guard.file, "exec")


@each_guard
def test_its_row_names_tests_of_its_file(guard: Guard) -> None:
    _name, where, tests = ROWS[guard.name]
    assert where == f"`{guard.file}`"
    known = set(re.findall(r"def (test_\w+)", (ROOT / guard.test).read_text(encoding="utf-8")))
    named = set(re.findall(r"`(\w+)`", tests))
    assert named
    assert named <= known


def test_every_row_is_a_guard() -> None:
    assert set(ROWS) == {"guard", "---", *(guard.name for guard in GUARDS)}
