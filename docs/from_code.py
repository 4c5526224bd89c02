"""Parts of the reference that are made from the code, so that they can't differ from it."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from agentruns import conf
from agentruns.enums import ALLOWED_MOVES, TERMINAL, WAITING, RunStatus

WIDTH, HEIGHT = 176, 44
POSITIONS = {
    RunStatus.QUEUED: (110, 150),
    RunStatus.RUNNING: (400, 150),
    RunStatus.WAITING_FOR_APPROVAL: (520, 300),
    RunStatus.WAITING_FOR_INPUT: (708, 300),
    RunStatus.COMPLETED: (708, 150),
    RunStatus.FAILED: (480, 40),
    RunStatus.CANCELLED: (250, 440),
}


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each setting: the comment above it, or above its group."""
    source = Path(conf.__file__).read_text()
    lines = source.splitlines()
    (declared,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Conf"
    )
    meaning = ""
    for node in declared.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name):
            continue
        comments = []
        above = node.lineno - 2
        while lines[above].strip().startswith("#"):
            comments.insert(0, lines[above].strip().lstrip("# "))
            above -= 1
        meaning = " ".join(comments) or meaning
        default = getattr(conf.Conf, target.id).default
        yield target.id, f"default `{default!r}`", meaning


class SettingsList(Directive):
    def run(self) -> list[nodes.Node]:
        text = [
            line
            for name, default, said in settings()
            for line in (f"`{name}`, {default}", f": {said}", "")
        ]
        container = nodes.container()
        self.state.nested_parse(StringList(text, "conf.py"), 0, container)
        return list(container.children)


def edge(start: RunStatus, end: RunStatus) -> str:
    (x1, y1), (x2, y2) = POSITIONS[start], POSITIONS[end]
    length = math.hypot(x2 - x1, y2 - y1)
    across, along = (y1 - y2) / length, (x2 - x1) / length
    # Beside the middle line, so that the two directions of a pair are two lines.
    x1, y1, x2, y2 = (
        value + 7 * (across if index % 2 == 0 else along)
        for index, value in enumerate((x1, y1, x2, y2))
    )
    begin = border(x2 - x1, y2 - y1)
    finish = 1 - border(x2 - x1, y2 - y1)
    ends = [
        x1 + begin * (x2 - x1),
        y1 + begin * (y2 - y1),
        x1 + finish * (x2 - x1),
        y1 + finish * (y2 - y1),
    ]
    names = ("x1", "y1", "x2", "y2")
    where = " ".join(f'{name}="{value:.0f}"' for name, value in zip(names, ends, strict=True))
    return f'<line {where} stroke="currentColor" marker-end="url(#arrow)"/>'


def border(dx: float, dy: float) -> float:
    """How much of the way between two boxes' centres lies inside the first."""
    shares = [half / abs(way) for half, way in ((WIDTH / 2, dx), (HEIGHT / 2, dy)) if way]
    return min(shares) + 0.01


def box(status: RunStatus) -> str:
    x, y = POSITIONS[status]
    dashes = ' stroke-dasharray="6 4"' if status in WAITING else ""
    width = 3 if status in TERMINAL else 1.5
    return (
        f'<rect x="{x - WIDTH / 2}" y="{y - HEIGHT / 2}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        f'fill="none" stroke="currentColor" stroke-width="{width}"{dashes}/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="currentColor">'
        f"{escape(status.value)}</text>"
    )


def state_machine() -> str:
    edges = [edge(start, end) for start, ends in ALLOWED_MOVES.items() for end in sorted(ends)]
    return (
        '<svg viewBox="0 0 800 480" role="img" aria-label="The moves between the statuses of a run, '
        'which the table below lists" font-size="14" xmlns="http://www.w3.org/2000/svg">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="currentColor"/></marker>'
        f"</defs>{''.join(edges)}{''.join(box(status) for status in RunStatus)}</svg>"
    )


class StateMachine(Directive):
    def run(self) -> list[nodes.Node]:
        rows = [
            f"| `{start.value}` | {', '.join(f'`{end.value}`' for end in sorted(ends)) or 'none'} |"
            for start, ends in ALLOWED_MOVES.items()
        ]
        container = nodes.container()
        text = ["| from | to |", "| --- | --- |", *rows]
        self.state.nested_parse(StringList(text, "enums.py"), 0, container)
        return [nodes.raw("", state_machine(), format="html"), *container.children]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("settings-list", SettingsList)
    app.add_directive("state-machine", StateMachine)
    return {"parallel_read_safe": True}
