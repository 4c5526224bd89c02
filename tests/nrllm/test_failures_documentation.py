"""The tables in docs/failures.md are what the code says."""

from __future__ import annotations

import re

from agentruns.failures import BUILT_IN
from nrllm.failures import RULES
from tests.servers.process import ROOT

LINES = (ROOT / "docs/failures.md").read_text(encoding="utf-8").splitlines()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in LINES
    if line.startswith("| `")
]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_rules_about_agents_are_in_the_documentation_in_their_order() -> None:
    documented = [(*names(row[0]), row[1], row[2]) for row in ROWS if len(row) == 3]
    assert documented == [
        (kind.__name__, failure_class.value, reason.value if reason else "")
        for kind, failure_class, reason in RULES
    ]


def test_the_rules_that_need_no_agent_are_in_the_documentation_in_their_order() -> None:
    documented = [(names(row[0]), row[1]) for row in ROWS if len(row) == 2]
    assert documented == [
        ([kind.__name__ for kind in kinds], failure_class.value)
        for kinds, failure_class in BUILT_IN
    ]
