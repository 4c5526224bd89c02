from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "script" / "check-protocol"  # .ci/run has it explore the model

# It looks at no database: once is enough.
pytestmark = pytest.mark.sqlite


def test_says_what_to_install(tmp_path: Path) -> None:
    for program in ("sh", "dirname"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    done = subprocess.run(
        [CHECK],
        env={**os.environ, "PATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert "apt-get install -y spin gcc" in done.stdout
