"""The versions that this project is for: `nox` for all of them, `nox -t quick` for the newest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
# The versions of what is installed beside Python: everything as old as pyproject.toml allows, the
# oldest Django with everything else at its newest, and everything at its newest.
VERSIONS = ["lowest", "django-5.2", "newest"]
# What some versions are not there for, and what is said about it.
NOT_FOR = {
    ("3.11", "newest"): "the newest Django is not for it, so that this is django-5.2",
    ("3.12", "lowest"): "the oldest dependencies are for the oldest Python",
    ("3.13", "lowest"): "the oldest dependencies are for the oldest Python",
}
SUITE = ["tests/agentruns", "tests/nrllm", "-m", "not browser"]

nox.options.default_venv_backend = "virtualenv"
# An interpreter that is missing is said to be, and skipped: also where CI is set.
nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"
nox.options.sessions = ["tests"]

PROJECT = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))


def ours() -> list[str]:
    """What the apps need, extras included."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]


def group(name: str) -> list[str]:
    lines: list[str] = PROJECT["dependency-groups"][name]
    return lines


def lowest(requirement: str) -> str:
    """Have pip take the version that the requirement begins with: `a[b]>=1.2,<3` is `a[b]==1.2`."""
    return re.sub(r">=\s*([\w.]+).*", r"==\1", requirement)


def install(session: nox.Session, versions: str) -> None:
    wanted = [lowest(line) for line in ours()] if versions == "lowest" else ours()
    if versions == "django-5.2":
        wanted.append("django~=5.2.0")
    session.install(*wanted, *group("project"), *group("demo"), *group("test"))


@nox.session(python=PYTHONS)
@nox.parametrize("versions", VERSIONS)
def tests(session: nox.Session, versions: str) -> None:
    """Run the tests of both packages; arguments after `--` go to pytest instead."""
    if why := NOT_FOR.get((str(session.python), versions)):
        session.skip(f"Python {session.python}: {why}")
    install(session, versions)
    session.run("pytest", "-q", *(session.posargs or SUITE))


@nox.session(python=PYTHONS[-1], tags=["quick"])
def quick(session: nox.Session) -> None:
    """Run the tests of the fence, of the first agent and of the README on the newest of everything."""
    install(session, "newest")
    chosen = ["tests/agentruns/test_fence.py", "tests/agentruns/test_moves.py"]
    chosen += ["tests/agentruns/test_checks.py", "tests/nrllm/test_first_slice.py"]
    session.run("pytest", "-q", *chosen, "tests/test_readme.py")
    session.run("pytest", "-q", "tests/test_readme.py", env={"DATABASE_URL": ""})


@nox.session(python=PYTHONS[-1], tags=["quick"])
def security(session: nox.Session) -> None:
    """Look for secrets in the repository, and for known holes in the newest of everything."""
    session.install(*ours(), *group("security"))
    session.run("python", "-m", "script.security", *session.posargs)
