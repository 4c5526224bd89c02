from __future__ import annotations

from pathlib import Path

import pytest

from tests.markdown import Page
from tests.servers.process import ROOT
from tests.walkthrough import do

pytestmark = [pytest.mark.sqlite, pytest.mark.timeout(700)]


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    page = Page(ROOT / "docs/tutorial.md")
    done = do(page.blocks(), tmp_path, project="mysite")
    assert "undeclared" not in done.printed
    assert len((done.project / "outbox.txt").read_text().splitlines()) == 1
