"""docs/agents.md names what exists."""

from __future__ import annotations

import re

import nrllm
from agentruns.conf import Conf
from agentruns.enums import ToolEffect
from tests.servers.process import ROOT

TEXT = (ROOT / "docs/agents.md").read_text(encoding="utf-8")


def test_what_it_imports_is_exported() -> None:
    imported = re.findall(r"^from nrllm import (.+)$", TEXT, re.MULTILINE)
    names = {name.strip() for line in imported for name in line.split(",")}
    assert names
    assert names <= set(nrllm.__all__)


def test_it_lists_every_effect() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert named >= set(ToolEffect.values)


def test_the_settings_that_it_names_exist() -> None:
    assert set(re.findall(r'AGENTRUNS\["(\w+)"\]', TEXT)) <= set(Conf.names())
