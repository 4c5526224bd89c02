"""What `pip install` would bring, taken from what is installed here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers.process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def link_what_is_required(requirements: Iterable[str], folder: Path) -> None:
    """Fill a folder with the packages that these requirements need, and with no other."""
    folder.mkdir()
    for found in _required(requirements):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(str(found.locate_file(top)))


def _required(requirements: Iterable[str]) -> Iterator[Distribution]:
    waiting = [Requirement(line) for line in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += _needs(name, extra)
            if name != PROJECT["name"] and not extra:
                yield distribution(name)


def _needs(name: str, extra: str) -> Iterator[Requirement]:
    if name == PROJECT["name"]:
        optional = PROJECT["optional-dependencies"]
        lines = optional[extra] if extra else PROJECT["dependencies"]
    else:
        lines = distribution(name).requires or []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def requirements_of(line: str) -> list[str]:
    """The requirements that a `pip install` line names; `/path/to/clone[extra]` is this project."""
    words = re.findall(r'"([^"]+)"|(?<=\s)([a-z][\w\[\],-]*)(?=\s|$)', line.partition("#")[0])
    named = ["".join(word) for word in words]
    return [word for word in named if word != "install"]
