"""The tables of docs/performance.md are those that the benchmarks make of the figures that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page
from benchmarks.__main__ import NAMES
from benchmarks.report import tables

SPREAD = {"median": 2.0, "q1": 1.0, "q3": 3.0}


def kept() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(page.FIGURES.read_text(encoding="utf-8"))
    return figures


def test_the_page_has_the_tables_of_the_figures_that_are_kept() -> None:
    _before, between, _after = page.parts(page.PAGE.read_text(encoding="utf-8"))
    assert between == tables(kept())


def test_what_is_kept_is_all_that_is_measured() -> None:
    rows = next(iter(kept()["sizes"].values()))
    assert {row.get("benchmark", "plans") for row in rows} == set(NAMES)


def test_writing_leaves_what_is_written_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text(f"before\n{page.BEGIN}\n\nold\n\n{page.END}\nafter\n", encoding="utf-8")
    result = {**kept(), "sizes": {"7": [claimed("raw"), claimed("agentruns")]}}
    page.write(result)
    before, between, after = page.parts(page.PAGE.read_text(encoding="utf-8"))
    assert (before, after) == ("before\n", "\nafter\n")
    assert between == tables(result)
    assert "| claim | 1 | agentruns | 2 (1 to 3) | 500000 | 2.00 (1.00 to 3.00) |" in between
    page.write(result)
    assert page.parts(page.PAGE.read_text(encoding="utf-8"))[1] == between


def claimed(contender: str) -> dict[str, Any]:
    return {
        "benchmark": "claim",
        "processes": 1,
        "contender": contender,
        "microseconds": SPREAD,
        "per_second": 500_000,
        "ratio": None if contender == "raw" else SPREAD,
    }
