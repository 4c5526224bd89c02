from __future__ import annotations

import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agentruns", "nrllm")

Requirements = dict[str, tuple[set[str], str, str]]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def merged(lines: list[str]) -> Requirements:
    """Sum requirements up by project: every extra that is asked for, the versions, the marker."""
    extras: dict[str, set[str]] = defaultdict(set)
    rest: dict[str, tuple[str, str]] = {}
    for line in lines:
        requirement = Requirement(line)
        name = requirement.name
        extras[name] |= requirement.extras
        versions = (str(requirement.specifier), str(requirement.marker or ""))
        assert rest.setdefault(name, versions) == versions, f"{name}: two different versions"
    return {name: (extras[name], *rest[name]) for name in rest}


def test_requirements_are_the_sum_of_what_pyproject_declares(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    declared = [project["dependencies"], *project["optional-dependencies"].values()]
    declared += pyproject["dependency-groups"].values()
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert merged(listed) == merged([line for group in declared for line in group])


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= held
    assert {name.partition("/")[0] for name in held if ".dist-info" not in name} == set(PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in held)
    for package in PACKAGES:
        assert f"{package}/py.typed" in held


def test_the_wheel_names_no_test_tool_as_a_dependency(pyproject: dict[str, Any]) -> None:
    dependencies = {Requirement(line).name for line in pyproject["project"]["dependencies"]}
    assert dependencies == {"django", "django-q2", "psycopg"}
