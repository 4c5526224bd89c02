"""Take each guard out, one at a time, in a copy of the project, and demand that a test fails.

    python -m tests.guards [TEXT]     # those whose name contains this

Prints the table of docs/guards.md. Not part of script/test: it runs tests for each guard, those that
the page names first, and the rest of their file where one of them passes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.markdown import Page
from tests.servers.process import ROOT

from .guards import GUARDS, Guard

COPIED = (
    "agentruns",
    "nrllm",
    "settings",
    "script",
    "tests",
    "docs",
    "manage.py",
    "pyproject.toml",
)
FAILED = re.compile(r"^FAILED (\S+?)(?:\[| - |$)", re.MULTILINE)
SHOWN = 3
# What pytest ends with where a name of the page is no test any more.
NONE_CHOSEN = 5


def main(wanted: str = "") -> int:
    survived, named = 0, named_tests()
    with tempfile.TemporaryDirectory(prefix="guards-") as name:
        folder = copy_of_the_project(Path(name))
        print("| guard | where | tests that fail without it |\n| --- | --- | --- |", flush=True)
        for guard in GUARDS:
            if wanted in guard.name:
                failed = tests_that_fail_without(guard, folder, named.get(guard.name, []))
                survived += not failed
                tests = ", ".join(f"`{test}`" for test in failed) or "NONE"
                print(f"| {guard.name} | `{guard.file}` | {tests} |", flush=True)
    return 1 if survived else 0


def copy_of_the_project(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "_build")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def named_tests() -> dict[str, list[str]]:
    """The tests that docs/guards.md names for each guard."""
    rows = Page(ROOT / "docs/guards.md").rows()
    return {row[0]: re.findall(r"`(test_\w+)`", row[2]) for row in rows}


def tests_that_fail_without(guard: Guard, folder: Path, named: list[str]) -> list[str]:
    file = folder / guard.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(without(guard, whole), encoding="utf-8")
    try:
        failed = failing(guard, folder, "-k", " or ".join(named)) if named else []
        return failed if set(named) <= set(failed) and named else failing(guard, folder)
    finally:
        file.write_text(whole, encoding="utf-8")


def failing(guard: Guard, folder: Path, *chosen: str) -> list[str]:
    """Run the guard's tests, or those chosen; return the first that fail."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    if not guard.on_postgres:
        environment.pop("DATABASE_URL", None)
    options = ["-q", "-p", "no:randomly", "-rf", *([] if chosen else [f"--maxfail={SHOWN}"])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, guard.test],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, NONE_CHOSEN):
        raise SystemExit(f"{guard.name}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return list(dict.fromkeys(test.rpartition("::")[2] for test in FAILED.findall(done.stdout)))


def without(guard: Guard, text: str) -> str:
    """The text without the guard; it must be there exactly once."""
    if text.count(guard.old) != 1:
        raise SystemExit(f"{guard.name}: found {text.count(guard.old)} times in {guard.file}")
    return text.replace(guard.old, guard.new)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
