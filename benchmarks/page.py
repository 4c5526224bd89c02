"""docs/performance.md: the tables between its markers are those of the figures that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .report import tables

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
FIGURES = Path(__file__).resolve().parent / "figures.json"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def write(result: dict[str, Any]) -> None:
    """Put the tables of these figures into the page, and leave the rest of it."""
    before, _old, after = parts(PAGE.read_text(encoding="utf-8"))
    page = f"{before}{BEGIN}\n\n{tables(result)}\n\n{END}{after}"
    PAGE.write_text(page, encoding="utf-8")


def parts(page: str) -> tuple[str, str, str]:
    """What stands before, between and after the markers."""
    before, _begin, rest = page.partition(BEGIN)
    between, _end, after = rest.partition(END)
    return before, between.strip("\n"), after
