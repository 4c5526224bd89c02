"""A page of the documentation, done as it says, in a new project with the wheel installed."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from tests.installed import link_what_is_required, requirements_of
from tests.markdown import Block
from tests.servers.process import ROOT, Watchdog

# What the wheel needs is here already, and need not be fetched again.
INSTALL = (
    "echo {needed} > "
    "$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')/needed.pth\n"
    "pip install --no-deps --no-index {wheel}"
)
SECONDS = 600


@dataclass(frozen=True)
class Done:
    """What came of it: the folder of the project, and what the shell printed."""

    project: Path
    printed: str


def do(
    blocks: Iterable[Block], folder: Path, *, project: str, before: str = "", after: str = ""
) -> Done:
    """Do what the blocks say, in their order, in one shell that ends at the first error.

    `project` is the name that the page gives the reader's project; here it gets a name of its own,
    since pages kill what has it. `before` and `after` are what the page leaves to its reader.

    Raises:
        AssertionError: a command failed; it holds what was printed.
    """
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))
    name = f"{project}{secrets.token_hex(4)}"
    here = folder / "project"
    here.mkdir()
    commands = folder / "commands"
    lines = ["set -eux", before, *script(blocks, Path(wheel)), after]
    commands.write_text("\n".join(lines).replace(project, name))
    clean = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    with subprocess.Popen(
        ["bash", str(commands)],
        cwd=here,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        watchdog = Watchdog(shell.pid)
        try:
            printed, _ = shell.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as unfinished:
            printed = f"{(unfinished.output or b'').decode()}\nunfinished after {SECONDS} s"
        finally:
            watchdog.process.communicate()  # the end of its input: it kills the group
    background = here / "background.log"
    log = background.read_text() if background.exists() else ""
    assert shell.returncode == 0, f"{printed}\n{log}"
    return Done(here, printed)


def script(blocks: Iterable[Block], wheel: Path) -> Iterator[str]:
    for block in blocks:
        if block.kind == "python":
            assert block.file, f"a block does not say to which file it belongs:\n{block.content}"
            yield "mkdir -p " + shlex.quote(os.path.dirname(block.file) or ".")  # noqa: PTH120
            append = ">>" if block.file.endswith("settings.py") else ">"
            yield f"cat {append} {block.file} <<'END'\n{block.content}END"
        elif block.kind == "sh":
            yield "\n".join(locally(line, wheel) for line in block.content.splitlines())
        elif block.kind == "sh in the background":
            yield f"{{\n{block.content}}} >> background.log 2>&1 &"


def locally(line: str, wheel: Path) -> str:
    if line.startswith('pip install "django-nrllm'):
        needed = wheel.parent / "needed"
        link_what_is_required(requirements_of(line), needed)
        return INSTALL.format(needed=shlex.quote(str(needed)), wheel=shlex.quote(str(wheel)))
    return line.replace("django-admin ", "python -m django ")
