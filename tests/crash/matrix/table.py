from __future__ import annotations

from collections.abc import Callable

from agentruns.enums import ToolEffect
from agentruns.testing.boundaries import Point

from .cells import COMPLETED, INTERRUPTED, NOT_RETRYABLE, Cell, Signal, Situation, every_cell

WORDS = {
    COMPLETED: "goes on",
    INTERRUPTED: "dead-lettered",
    NOT_RETRYABLE: "not again",
}


def markdown(word: Callable[[Cell], str]) -> str:
    """One table for each effect; `word` says what stands in a cell that can occur."""
    return "\n\n".join(f"### {effect.value}\n\n{of_effect(effect, word)}" for effect in ToolEffect)


def of_effect(effect: ToolEffect, word: Callable[[Cell], str]) -> str:
    head = "| boundary | " + " | ".join(Situation) + " |"
    lines = [head, "|" + " --- |" * (len(Situation) + 1)]
    for point in Point:
        told = [of_signals(effect, point, situation, word) for situation in Situation]
        lines.append(f"| `{point}` | " + " | ".join(told) + " |")
    return "\n".join(lines)


def of_signals(
    effect: ToolEffect, point: Point, situation: Situation, word: Callable[[Cell], str]
) -> str:
    """What comes of each signal: one word if it is the same, else those that differ by their names."""
    cells = [Cell(effect, point, situation, number) for number in Signal]
    if cells[0].cant_occur:
        return f"({notes()[cells[0].cant_occur]})"
    killed, *others = (word(cell) for cell in cells)
    differing = [
        f"; {cell.signal}: {told}"
        for cell, told in zip(cells[1:], others, strict=True)
        if told != killed
    ]
    return killed + "".join(differing)


def notes() -> dict[str, int]:
    """The reasons for which cells can't occur, numbered."""
    reasons = dict.fromkeys(cell.cant_occur for cell in every_cell() if cell.cant_occur)
    return {reason: number for number, reason in enumerate(reasons, 1)}


def legend() -> str:
    return "\n".join(f"- ({number}) can't occur: {reason}" for reason, number in notes().items())
