from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import ROOT

from .environment import subprocess_environment


@dataclass(frozen=True)
class ManageResult:
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    def check(self) -> ManageResult:
        """Return itself, or raise with what the command said."""
        if self.returncode != 0:
            raise AssertionError(f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}")
        return self


def run_manage(
    *arguments: str, timeout: float = 240, root: Path = ROOT, **options: Any
) -> ManageResult:
    """Run `manage.py` with these arguments in a process of its own, on this test's database.

    `root` is where its code is; `options` are those of `subprocess_environment`.
    """
    completed = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=root,
        env=subprocess_environment(root=root, **options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return ManageResult(completed.returncode, completed.stdout, completed.stderr)
