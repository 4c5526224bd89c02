from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from script.security import NotAudited, holes, secrets_in

# Put together here, so that this file holds none.
PLANTED = "AKIA" + "IOSFODNN7" + "EXAMPLE"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def track(repository: Path, content: str) -> None:
    (repository / "settings.py").write_text(content)
    subprocess.run(["git", "add", "settings.py"], cwd=repository, check=True)


def test_a_secret_is_found_in_what_git_tracks(repository: Path, tmp_path: Path) -> None:
    track(repository, f"AWS = {PLANTED!r}\n")
    assert "AWS Access Key" in secrets_in(str(repository), str(tmp_path))


def test_what_is_no_secret_is_not(repository: Path, tmp_path: Path) -> None:
    track(repository, "AWS = os.environ['AWS']\n")
    (repository / "untracked.py").write_text(f"AWS = {PLANTED!r}\n")
    assert secrets_in(str(repository), str(tmp_path)) == ""


def test_without_a_network_nothing_is_said_about_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(NotAudited):
        holes(str(tmp_path))
