from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .exercise import Boundary, Trace


@dataclass(frozen=True)
class Cell:
    """What became of a run whose worker was killed at this boundary."""

    boundary: Boundary
    outcome: str
    reason: str
    broken: list[str]
    bodies: dict[str, int]
    effects: dict[str, int]
    said: str = ""

    @property
    def word(self) -> str:
        return f"BROKEN ({self.outcome})" if self.broken else self.outcome

    def __str__(self) -> str:
        where = f"{self.boundary.point} {self.boundary.step}".strip()
        return f"{where}: {self.word}" + "".join(f"; {why}" for why in self.broken)

    def as_dict(self) -> dict[str, Any]:
        return {
            "segment": self.boundary.segment,
            "point": self.boundary.point,
            "step": self.boundary.step,
            "name": self.boundary.name,
            "effect": self.boundary.effect,
            "outcome": self.outcome,
            "reason": self.reason,
            "broken": self.broken,
            "bodies": self.bodies,
            "effects": self.effects,
        }


@dataclass
class CrashReport:
    """The table of boundary by outcome, and every promise that was broken."""

    agent: str
    boundaries: list[Boundary]
    undisturbed: Trace
    cells: list[Cell] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        return [str(cell) for cell in self.cells if cell.broken]

    def check(self) -> None:
        """Raise AssertionError, with the table, if a promise was broken."""
        if self.broken:
            raise AssertionError(self.as_text())

    def as_dict(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "cells": [cell.as_dict() for cell in self.cells],
            "effects_undisturbed": dict(self.undisturbed.effects),
            "broken": self.broken,
        }

    def as_text(self) -> str:
        """The table: a line for each boundary, in the order in which the run comes to them."""
        rows = [("boundary", "step", "name", "effect", "outcome")]
        rows += [
            (c.boundary.point, c.boundary.step, c.boundary.name, c.boundary.effect, c.word)
            for c in self.cells
        ]
        lines = [*aligned(rows), ""]
        lines += [f"undisturbed: {name} {n}" for name, n in self.undisturbed.effects.items()]
        lines += self.broken
        broken = f"{len(self.broken)} of {len(self.cells)} broke a promise"
        lines.append(broken if self.broken else f"{len(self.cells)} boundaries, no promise broken")
        said = next((cell.said for cell in self.cells if cell.said), "")
        if said:
            lines += ["the last worker of the first of them printed:", *said.splitlines()[-20:]]
        return "\n".join(lines)


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
