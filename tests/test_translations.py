"""What people read is translatable, and the catalogues are what the code has."""

from __future__ import annotations

import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "agentruns"
TEMPLATES = sorted((APP / "templates").rglob("*.html"))
CATALOGUES = sorted(APP.glob("locale/*/LC_MESSAGES/django.po"))
# What nobody reads as it stands: what is translated, remarks, and the page's classes.
TRANSLATED = (
    r"{%\s*(?:(blocktranslate|comment)\b.*?{%\s*end\1|block bodyclass\b.*?{%\s*endblock)\s*%}"
)
needs_gettext = pytest.mark.skipif(
    shutil.which("msgfmt") is None, reason="the GNU gettext tools are not installed"
)


def literals(source: str) -> str:
    """What a template shows as it stands: without its tags, its markup and what is translated."""
    text = re.sub(TRANSLATED, " ", source, flags=re.DOTALL)
    text = re.sub(r"{%.*?%}|{{.*?}}|<[^>]*>|&\w+;", " ", text, flags=re.DOTALL)
    return " ".join(re.findall(r"[^\W\d_]{2,}", text))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_template_has_no_word_that_is_not_translated(template: Path) -> None:
    assert literals(template.read_text(encoding="utf-8")) == ""


def test_a_word_in_a_template_is_noticed() -> None:
    assert literals('<p class="x">Stop {% translate "that" %} {{ now }} &rsaquo;</p>') == "Stop"


def test_there_is_german() -> None:
    assert [file.parents[1].name for file in CATALOGUES] == ["de"]


def messages(file: Path) -> dict[object, str]:
    with file.open("rb") as compiled:
        found: dict[object, str] = gettext.GNUTranslations(compiled)._catalog  # type: ignore[attr-defined]
    return found


@needs_gettext
@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda file: file.parents[1].name)
def test_the_compiled_catalogue_is_that_of_the_source(catalogue: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "django.mo"
    command = ["msgfmt", "--check-format", "-o", str(compiled), str(catalogue)]
    subprocess.run(command, check=True, timeout=120)
    assert messages(catalogue.with_suffix(".mo")) == messages(compiled)


@needs_gettext
@pytest.mark.parametrize("language", [file.parents[1].name for file in CATALOGUES])
def test_nine_of_ten_messages_are_translated(language: str, tmp_path: Path) -> None:
    copy = tmp_path / "agentruns"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "django", "makemessages", "-l", language, "--no-obsolete"]
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, timeout=280)
    merged = copy / "locale" / language / "LC_MESSAGES" / "django.po"
    entries = re.split(r"\n\n+", merged.read_text(encoding="utf-8"))[1:]
    missing = [e for e in entries if "#, fuzzy" in e or re.search(r'msgstr ""\n?(?!")\s*$', e)]
    assert len(entries) > 300
    assert len(missing) * 10 <= len(entries), "\n\n".join(missing)
