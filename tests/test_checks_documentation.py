"""docs/checks.md names every system check there is, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"[EWI]\d{3}")
WHOLE = re.compile(r"(?:agentruns|nrllm)\.[EWI]\d{3}")


def ids_in_the_code() -> set[str]:
    """The ids that are written in the code: whole, or as the number that a helper is given."""
    found = set()
    for package in ("agentruns", "nrllm"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                    continue
                if NUMBER.fullmatch(node.value):
                    found.add(f"{package}.{node.value}")
                elif WHOLE.fullmatch(node.value):
                    found.add(node.value)
    return found


def test_every_check_is_in_the_table_once_and_in_order() -> None:
    page = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\S+\.[EWI]\d{3}) \| \S", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == ids_in_the_code()
    groups = [re.sub(r"\d+", "", name) for name in listed]
    for group in set(groups):
        numbers = [name for name in listed if name.startswith(group)]
        assert numbers == sorted(numbers)
