from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "script" / "check-protocol"
missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]

# It looks at no database: once is enough.
pytestmark = pytest.mark.sqlite


def check(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECK],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.skipif(bool(missing), reason=f"not installed: {' '.join(missing)}")
@pytest.mark.timeout(900)
def test_every_promise_holds_and_every_mistake_is_found() -> None:
    done = check(os.environ["PATH"])

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed"), done.stdout
    assert "FAILED" not in done.stdout


def test_says_what_to_install(tmp_path: Path) -> None:
    for program in ("sh", "dirname"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")

    done = check(str(tmp_path))

    assert done.returncode == 2, done.stdout
    assert "apt-get install -y spin gcc" in done.stdout
