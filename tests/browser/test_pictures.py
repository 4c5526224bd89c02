from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import installed_browser

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.skipif(installed_browser() is None, reason="no browser is installed")
def test_the_pictures_of_the_documentation_can_be_made_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "script.pictures", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=800)
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\(images/([\w-]+\.png)\)", page))
    assert {file.name for file in tmp_path.iterdir()} == shown
    assert all(file.read_bytes().startswith(PNG) for file in tmp_path.iterdir())
