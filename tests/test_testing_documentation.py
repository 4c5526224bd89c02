from __future__ import annotations

from pathlib import Path

import pytest

from tests.markdown import Page
from tests.servers.process import ROOT
from tests.walkthrough import do

pytestmark = [pytest.mark.sqlite, pytest.mark.timeout(700)]


def test_the_page_about_testing_does_what_it_says(tmp_path: Path) -> None:
    page = Page(ROOT / "docs/testing.md")
    done = do(page.blocks(), tmp_path, project="mysite")
    assert "27 boundaries, no promise broken" in done.printed
    assert "4 passed" in done.printed
