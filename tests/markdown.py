"""The pages of the documentation, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.servers.process import ROOT

FENCE = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"# ([\w./-]+\.py)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: what it says it is, its text, and the line that it begins in."""

    kind: str
    content: str
    line: int

    @property
    def file(self) -> str | None:
        """The file of the reader's project that it says it belongs to, in its first line."""
        named = FILE.match(self.content)
        return named[1] if named else None


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return _read(self.path)

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return FENCE.sub("", self.text)

    def blocks(self, kind: str = "") -> Iterator[Block]:
        for found in FENCE.finditer(self.text):
            if found["kind"].startswith(kind):
                line = self.text.count("\n", 0, found.start()) + 1
                yield Block(found["kind"], found["content"], line)

    def spans(self) -> Iterator[str]:
        """What is set as code inside the text."""
        for found in SPAN.finditer(self.prose):
            yield " ".join(found[1].split())

    def rows(self) -> Iterator[list[str]]:
        """The cells of every row of a table."""
        for line in self.prose.splitlines():
            if line.startswith("|"):
                yield [cell.strip() for cell in line.strip("|").split("|")]

    def links(self) -> Iterator[str]:
        yield from LINK.findall(self.prose)

    def anchors(self) -> set[str]:
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {slug(heading) for heading in headings}


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def slug(heading: str) -> str:
    """The anchor that a heading gets, here and where the repository is browsed."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def pages() -> list[Page]:
    """Every page that people read: the ones at the top, and the site's."""
    site = (path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    return [Page(path) for path in sorted([*ROOT.glob("*.md"), *site])]
