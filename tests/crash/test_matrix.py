"""The quick part of the crash matrix; the whole of it is `script/crash-matrix`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

import pytest
from django.db import connection

from agentruns.enums import ToolEffect
from agentruns.testing.boundaries import Point
from tests.harness.environment import database_url
from tests.markdown import Page
from tests.servers.process import ROOT

from .matrix.cells import Cell, Signal, Situation, cells_to_run, every_cell
from .matrix.run import chosen
from .matrix.table import WORDS, legend, markdown

PAGE = ROOT / "docs/crash-matrix.md"


@pytest.mark.timeout(1300)
@pytest.mark.django_db(transaction=True)
def test_every_cell_of_the_quick_part_ends_as_it_must_and_breaks_no_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.matrix", "--quick", "--json"],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings.test",
            "DATABASE_URL": database_url(),
        },
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"broken": done.stderr}
    assert report["broken"] == []
    assert done.returncode == 0
    outcomes = {cell_of(told): told["outcome"] for told in report["cells"]}
    assert outcomes == {cell: cell.expected for cell in chosen(connection.vendor, quick=True)}


def cell_of(told: dict[str, Any]) -> Cell:
    return Cell(
        ToolEffect(told["effect"]),
        Point(told["point"]),
        Situation(told["situation"]),
        Signal(told["signal"]),
    )


def test_every_cell_is_run_or_has_a_reason() -> None:
    cells = list(every_cell())
    assert len(set(cells)) == len(cells)
    run = set(cells_to_run())
    assert all((cell in run) != bool(cell.cant_occur) for cell in cells)
    assert {(cell.situation, cell.signal) for cell in run} == set(product(Situation, Signal))


@pytest.mark.parametrize("vendor", ["postgresql", "mysql", "sqlite"])
@pytest.mark.parametrize("quick", [True, False])
def test_each_boundary_of_each_effect_is_run_on_every_database(vendor: str, quick: bool) -> None:
    wanted = {(cell.effect, cell.point) for cell in cells_to_run()}
    assert {(cell.effect, cell.point) for cell in chosen(vendor, quick=quick)} == wanted


def test_the_documentation_has_the_table() -> None:
    text = Page(PAGE).text
    assert markdown(lambda cell: WORDS[cell.expected]) in text
    assert legend() in text
    assert f"{len(cells_to_run())} cells" in text
