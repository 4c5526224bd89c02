"""Look for secrets in what git tracks, and for known holes in what is installed.

Secrets are looked for without a network. For holes, PyPI is asked; where it does not answer, that is
said, and is no failure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# What was looked at and is none. After such a change:
# `detect-secrets scan --no-verify --baseline .secrets.baseline`, and look at the difference.
BASELINE = ROOT / ".secrets.baseline"
BASELINE_MOVED = 3  # the hook's exit code where only lines have moved
# What an environment has beside the project's dependencies.
TOOLS = {"pip", "setuptools", "wheel"}


def run(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )


def tracked(folder: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if Path(folder, name).is_file()]


def secrets_in(folder: str, scratch: str) -> str:
    """What looks like a secret in the files that git tracks here; '' if nothing does."""
    baseline = shutil.copy(BASELINE, scratch)  # the hook writes into it
    hook = ("detect_secrets.pre_commit_hook", "--no-verify", "--baseline", str(baseline))
    done = run(folder, *hook, *tracked(folder))
    return "" if done.returncode in (0, BASELINE_MOVED) else done.stdout + done.stderr


class NotAudited(Exception):
    """Nobody could be asked about known holes; says why."""


def holes(scratch: str, *options: str) -> list[str]:
    """The known holes of what is installed.

    Raises:
        NotAudited: there is no network, or no answer.
    """
    report = Path(scratch, "audit.json")
    asked = (
        "pip_audit",
        "--local",
        "--progress-spinner=off",
        "--format=json",
        f"--output={report}",
    )
    done = run(scratch, *asked, *options)
    if not report.exists():
        raise NotAudited((done.stderr.splitlines() or ["pip-audit wrote no report"])[-1])
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return [
        f"{one['name']} {one['version']}: {hole['id']}, fixed in {hole['fix_versions'] or 'none'}"
        for one in found["dependencies"]
        for hole in one.get("vulns", ())
        if one["name"] not in TOOLS
    ]


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        secrets = secrets_in(str(ROOT), scratch)
        print(secrets or "No secrets.")
        try:
            known = holes(scratch, *options)
        except NotAudited as why:
            print(f"NOT AUDITED for known holes in the dependencies: {why}")
            return 1 if secrets else 0
    print("\n".join(known) or "No known holes in the dependencies.")
    return 1 if secrets or known else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
