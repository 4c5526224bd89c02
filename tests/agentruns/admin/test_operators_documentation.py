"""docs/operators.md gives groups their permissions as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from agentruns.models import AgentRun

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"


@pytest.mark.django_db
def test_its_groups_get_the_permissions_that_it_names() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, dict[str, list[str]]] = {}
    exec(code, names)
    given = {
        group.name: set(group.permissions.values_list("codename", flat=True))
        for group in Group.objects.all()
    }
    assert given == {name: set(codenames) for name, codenames in names["ROLES"].items()}


def test_it_explains_every_permission_of_ours() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ours = {codename for codename, _name in AgentRun._meta.permissions} | {"view_agentrun"}
    assert set(explained) == ours


def test_its_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(pictures) >= 6
    assert all((PAGE.parent / picture).is_file() for picture in pictures)
