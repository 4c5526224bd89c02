"""`script/release` in a copy of the checkout with a history of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from script.releasing import notes
from tests.servers.process import ROOT

IDENTITY = ["-c", "user.name=a test", "-c", "user.email=test@example.org"]
NEEDED = ["agentruns", "nrllm", "script"]


@dataclass(frozen=True)
class Checkout:
    root: Path

    def git(self, *arguments: str) -> str:
        command = ["git", *IDENTITY, *arguments]
        done = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout

    def change(self, name: str, old: str, new: str) -> None:
        file = self.root / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "script.releasing", *arguments],
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.root.parent), **identity()},
            capture_output=True,
            text=True,
            check=False,
        )


def identity() -> dict[str, str]:
    who = {"NAME": "a test", "EMAIL": "test@example.org"}
    return {f"GIT_{role}_{part}": who[part] for role in ("AUTHOR", "COMMITTER") for part in who}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout that is ready for the release of version 1.2.3."""
    root = tmp_path / "checkout"
    root.mkdir()
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.endswith(("sqlite3", ".sqlite3-wal", ".sqlite3-shm")):
            shutil.copy(file, root / file.name)
    for folder in NEEDED:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    ready = Checkout(root)
    version = next(
        line for line in (root / "pyproject.toml").read_text().splitlines() if "version = " in line
    )
    ready.change("pyproject.toml", version, 'version = "1.2.3"')
    ready.change("CHANGELOG.md", "## [Unreleased]", "## [1.2.3] - 2026-01-02")
    ready.git("init", "--quiet", "--initial-branch", "main")
    ready.commit()
    return ready


def test_a_dry_run_builds_and_checks_and_leaves_no_trace(checkout: Checkout) -> None:
    done = checkout.release("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "django_nrllm-1.2.3-py3-none-any.whl" in done.stdout
    assert "django_nrllm-1.2.3.tar.gz" in done.stdout
    assert done.stdout.count("PASSED") == 2
    assert checkout.git("tag") == checkout.git("status", "--porcelain", "--ignored", "dist") == ""


def test_a_release_is_tagged_once(checkout: Checkout) -> None:
    done = checkout.release()
    assert done.returncode == 0, done.stderr
    assert checkout.git("tag").split() == ["v1.2.3"]
    assert len(list((checkout.root / "dist").iterdir())) == 2
    again = checkout.release()
    assert again.returncode == 1
    assert "the tag v1.2.3 exists already" in again.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", '"1.2.3"', '"1.2.3.dev0"', "set the one to be released"),
        ("pyproject.toml", '"1.2.3"', '"one"', "which is none"),
        ("CHANGELOG.md", "[1.2.3] - 2026-01-02", "[Unreleased]", "has no section"),
        ("CHANGELOG.md", "[1.2.3] - 2026-01-02", "[1.2.3]", "has no date"),
        ("CHANGELOG.md", "[1.2.3] - 2026-01-02", "[1.2.3] - soon", "has no date (soon"),
        ("CHANGELOG.md", "2026-01-02\n", "2026-01-02\n\n## [1.2.2] - 2026-01-01\n", "says nothing"),
    ],
)
def test_refuses_what_is_not_ready(
    checkout: Checkout, file: str, old: str, new: str, said: str
) -> None:
    checkout.change(file, old, new)
    checkout.commit()
    done = checkout.release()
    assert done.returncode == 1, done.stdout
    assert said in done.stderr
    assert checkout.git("tag") == ""


def test_names_everything_that_stands_against_it(checkout: Checkout) -> None:
    (checkout.root / "agentruns/new.py").touch()
    checkout.change("CHANGELOG.md", "[1.2.3] - 2026-01-02", "[Unreleased]")
    done = checkout.release("--dry-run")
    assert done.returncode == 1
    assert "not committed" in done.stderr
    assert "has no section" in done.stderr


def test_the_notes_of_a_version_end_where_the_next_begins() -> None:
    text = "## [Unreleased]\n\n## [2.0] - 2026-02-02\n\n- new\n\n## [1.0] - 2025-01-01\n\n- old\n"
    assert notes("2.0", text) == ("2026-02-02", "- new")
    assert notes("1.0", text) == ("2025-01-01", "- old")
    assert notes("3.0", text) is None
