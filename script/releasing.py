"""What `script/release` does once Python has what it needs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

DIST = Path("dist")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def version() -> str:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def notes(wanted: str, changelog: str) -> tuple[str, str] | None:
    """Find the date and the text of a version's section."""
    found = re.search(
        rf"^## \[{re.escape(wanted)}\](?: - (\S+))?\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    return None if found is None else (found[1] or "", found[2].strip())


def refusals(wanted: str) -> Iterator[str]:
    """Say everything that stands against a release of this version, not only the first thing."""
    if git("status", "--porcelain"):
        yield "there are changes that are not committed"
    try:
        if Version(wanted).is_devrelease or str(Version(wanted)) != wanted:
            yield f"pyproject.toml has the version {wanted}: set the one to be released"
    except InvalidVersion:
        yield f"pyproject.toml has the version {wanted}, which is none"
    if git("tag", "--list", f"v{wanted}"):
        yield f"the tag v{wanted} exists already"
    yield from _refusals_of_changelog(notes(wanted, Path("CHANGELOG.md").read_text("utf-8")))


def _refusals_of_changelog(found: tuple[str, str] | None) -> Iterator[str]:
    if found is None:
        yield "CHANGELOG.md has no section for this version: give Unreleased its name and date"
        return
    dated, text = found
    try:
        date.fromisoformat(dated)
    except ValueError:
        yield f"the section of CHANGELOG.md has no date ({dated or 'none'}; wanted: YYYY-MM-DD)"
    if not text:
        yield "the section of CHANGELOG.md says nothing"


def build(folder: Path) -> list[Path]:
    """Build the wheel and the source distribution, and check what an index would refuse.

    Raises:
        CalledProcessError: one of them could not be built, or is not fit to be uploaded.
    """
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], check=True)
    built = sorted(folder.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    return built


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/release", description="Build, check and tag.")
    parser.add_argument("--dry-run", action="store_true", help="build and check; leave no trace")
    parser.add_argument("--upload", action="store_true", help="hand the files to twine afterwards")
    options = parser.parse_args(arguments)
    wanted = version()
    against = list(refusals(wanted))
    if against:
        print(f"Not released, version {wanted}:", *against, sep="\n- ", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        built = build(Path(folder))
        if options.dry_run:
            print(f"Version {wanted} could be released:", *(file.name for file in built))
            return 0
        DIST.mkdir(exist_ok=True)
        kept = [Path(shutil.move(file, DIST / file.name)) for file in built]
    git("tag", "--annotate", f"v{wanted}", "--message", f"Version {wanted}")
    print(f"Tagged v{wanted}; push the tag. Built:", *kept)
    if options.upload:
        subprocess.run([sys.executable, "-m", "twine", "upload", *kept], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
