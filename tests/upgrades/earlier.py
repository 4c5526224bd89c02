"""The code of an earlier version, taken out of the history and run beside today's."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.harness.manage import ManageResult, run_manage
from tests.harness.processes import Reaper
from tests.harness.qcluster import QCluster
from tests.servers.process import ROOT

JOURNALS = Path(__file__).parent / "journals"
# Of some of the journals, and of no other use.
KEY = "c3RvcmVkIHdpdGggdGhlIGpvdXJuYWxzIG9mIHRlc3Q="

MIGRATIONS = "agentruns/migrations"
ENQUEUE = "from agentruns.api import enqueue"


def states() -> list[str]:
    """The names of the migrations, in their order: each was the newest of a version."""
    return sorted(path.stem for path in (ROOT / MIGRATIONS).glob("0*.py"))


@dataclass(frozen=True)
class Earlier:
    """A folder with the code of the last version whose newest migration was `state`."""

    root: Path

    def manage(self, *arguments: str, **options: Any) -> ManageResult:
        return run_manage(*arguments, root=self.root, **options).check()

    def enqueue(self, *agents: str) -> list[UUID]:
        """Have this version enqueue a run of each agent."""
        command = f"{ENQUEUE}\nfor agent in {agents}: print(enqueue(agent, {{}}).uuid)"
        printed = self.manage("shell", "--verbosity=0", "--command", command).stdout.split()
        return [UUID(uuid) for uuid in printed]

    def cluster(self, directory: Path, **options: Any) -> QCluster:
        directory.mkdir()
        return QCluster(directory, root=self.root, **options)

    def reaper(self, **options: Any) -> Reaper:
        return Reaper(root=self.root, **options)


def code_of(state: str, folder: Path) -> Earlier:
    """Take out the code that was there when the next migration was added; skip where git has it not."""
    following = f"{MIGRATIONS}/{states()[states().index(state) + 1]}.py"
    added = git("log", "--diff-filter=A", "--format=%H", "--", following).decode().split()
    if not added:
        pytest.skip(f"the history has no version before {following}: a shallow clone?")
    archive = git("archive", "--format=tar", f"{added[-1]}^")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    newest = max(path.stem for path in (folder / MIGRATIONS).glob("0*.py"))
    assert newest == state, f"the history has {newest} before {following}"
    return Earlier(folder)


def git(*arguments: str) -> bytes:
    """What git says; where it can't (a shallow clone, a source archive), the test is skipped."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed: an earlier version's code is in the history")
    if done.returncode != 0:
        pytest.skip(f"the history has no earlier version: {done.stderr.decode().strip()}")
    return done.stdout
