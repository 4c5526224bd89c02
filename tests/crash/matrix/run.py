from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import connection

from agentruns.testing.databases import lanes_allowed, scratch_databases
from agentruns.testing.lanes import side_by_side

from .cells import Cell, Signal, cells_to_run, each_boundary_once, quick_cells
from .drill import Result, drill
from .table import WORDS, legend, markdown


@dataclass
class MatrixReport:
    database: str
    wanted: Sequence[Cell]
    results: dict[Cell, Result] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def missing(self) -> list[Cell]:
        return [cell for cell in self.wanted if not self._outcome(cell)]

    @property
    def broken(self) -> list[str]:
        broken = [f"{r.cell}: {'; '.join(r.broken)}" for r in self.results.values() if r.broken]
        return broken + [f"{cell}: missing" for cell in self.missing]

    def _outcome(self, cell: Cell) -> str:
        return self.results[cell].outcome if cell in self.results else ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "seconds": round(self.seconds, 1),
            "cells": [
                {
                    "effect": cell.effect,
                    "point": cell.point,
                    "situation": cell.situation,
                    "signal": cell.signal,
                    "outcome": self._outcome(cell),
                    "broken": self.results[cell].broken if cell in self.results else ["missing"],
                }
                for cell in self.wanted
            ],
            "broken": self.broken,
        }

    def as_text(self) -> str:
        wanted = set(self.wanted)

        def word(cell: Cell) -> str:
            if cell not in wanted:
                return "not run"
            broken = cell not in self.results or self.results[cell].broken
            return "BROKEN" if broken else WORDS[self._outcome(cell)]

        said = [f"{r.cell}:\n{r.said}" for r in self.results.values() if r.said]
        counts = f"{len(self.results)} of {len(self.wanted)} cells on {self.database}"
        closing = f"{counts} in {self.seconds:.0f} s, {len(self.broken)} broken"
        return "\n\n".join([markdown(word), legend(), *said, *self.broken, closing])


def chosen(vendor: str, *, quick: bool, only: str = "") -> list[Cell]:
    """The cells that are run on this database: all on PostgreSQL, every boundary once elsewhere."""
    everything = cells_to_run() if vendor == "postgresql" else each_boundary_once()
    cells = [cell for cell in quick_cells() if cell in everything] if quick else everything
    # Those that wait for a lease first: the others are done beside them.
    cells.sort(key=lambda cell: cell.signal is not Signal.STOP)
    return [cell for cell in cells if only in str(cell)]


def report_of_this_database(
    *, quick: bool, only: str, lanes: int, progress: Callable[[str], object]
) -> MatrixReport:
    cells = chosen(connection.vendor, quick=quick, only=only)
    report = MatrixReport(connection.display_name, cells)

    def done(result: Result) -> None:
        report.results[result.cell] = result
        how = "; ".join(result.broken) if result.broken else result.outcome
        progress(f"{len(report.results)}/{len(cells)} {result.cell}: {how}")

    lanes = lanes_allowed(lanes)
    with scratch_databases(lanes):
        side_by_side(lanes, cells, partial(drill, patient=quick), done, RETRY_BACKOFF_SECONDS=0.0)
    return report
