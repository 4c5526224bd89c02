"""What `script/test` runs once Python has what it needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

import psutil

from script.postgres import private_server

NO_TESTS_SELECTED = 5  # pytest's exit code
END_SECONDS = 10
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PYTHON = sys.executable
LINTERS = {
    "ruff check": [PYTHON, "-m", "ruff", "check"],
    "ruff format": [PYTHON, "-m", "ruff", "format", "--check"],
    "mypy": [PYTHON, "-m", "mypy"],
    "lint-imports": [
        PYTHON,
        "-c",
        "from importlinter.cli import lint_imports_command as lint; lint()",
    ],
    "makemigrations": [PYTHON, "manage.py", "makemigrations", "--check", "--dry-run"],
    "manage.py check": [PYTHON, "manage.py", "check"],
}


@dataclass
class Step:
    name: str
    code: int
    lines: list[str]

    @property
    def is_pytest(self) -> bool:
        return self.name.startswith("pytest")

    @property
    def passed(self) -> bool:
        return self.code == 0 or (self.is_pytest and self.code == NO_TESTS_SELECTED)

    @property
    def skipped(self) -> list[str]:
        return [line for line in self.lines if line.startswith("SKIPPED")]

    @property
    def outcome(self) -> str:
        closing = self.lines[-1].strip("= ") if self.lines else "no output"
        verdict = "passed" if self.passed else f"FAILED (exit code {self.code})"
        return f"{verdict}: {closing}" if self.is_pytest else verdict


@dataclass
class Suite:
    """Runs every step, whatever the earlier ones came to, unless a person presses Ctrl-C."""

    environment: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)
    interrupted: bool = False

    def run(self, name: str, command: list[str], **environment: str) -> None:
        if self.interrupted:
            return
        print(f"\n== {name}", flush=True)
        with subprocess.Popen(
            command,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            lines = []
            try:
                for line in child.stdout or ():
                    print(line, end="", flush=True)
                    if line.strip():
                        lines.append(COLOUR.sub("", line).rstrip())
                self.steps.append(Step(name, child.wait(), lines))
            finally:
                end(child)

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.interrupted = True  # a terminal sends Ctrl-C to the running step as well

    def summarise(self) -> bool:
        """Print how each step ended and what was skipped, and return whether all is well."""
        print("\n== Summary")
        for step in self.steps:
            print(f"{step.name:22} {step.outcome}")
        for step in self.steps:
            for line in step.skipped:
                print(f"{step.name:22} {line}")
        if not self.environment.get("REDIS_URL"):
            print("Without REDIS_URL, the tests of the Redis broker did not run.")
        if self.interrupted:
            print("Interrupted.")
        tests = [step for step in self.steps if step.is_pytest]
        nothing_ran = all(step.code == NO_TESTS_SELECTED for step in tests)
        if nothing_ran:
            print("No test was run.")
        good = all(step.passed for step in self.steps) and not (self.interrupted or nothing_ran)
        print("Everything passed." if good else "NOT everything passed.", flush=True)
        return good


def end(child: subprocess.Popen[str]) -> None:
    """End a step that is still running, and the processes that it started."""
    if child.poll() is not None:
        return
    family = []
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(child.pid)
        family = [*parent.children(recursive=True), parent]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(family, timeout=END_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def postgres() -> Iterator[str]:
    """Give the URL of the server that DATABASE_URL names, or of a private one."""
    named = os.environ.get("DATABASE_URL", "")
    if named.startswith(("postgres://", "postgresql://")):
        yield named
    else:
        print("DATABASE_URL names no PostgreSQL server: starting a private one.", flush=True)
        with private_server() as url:
            yield url


def run_tests(suite: Suite, postgres_url: str, arguments: list[str]) -> None:
    pytest = [PYTHON, "-m", "pytest", *arguments]
    if sys.stdout.isatty():
        pytest.append("--color=yes")
    if arguments:
        suite.run("pytest on PostgreSQL", pytest, DATABASE_URL=postgres_url)
        suite.run("pytest on SQLite", pytest)
        return
    measured = [*pytest, "--cov", "--cov-report="]
    # The browser's tests in a process of their own: Playwright's loop gives the main thread a second
    # database connection, which tests that cut every connection would cut as well.
    suite.run("pytest on PostgreSQL", [*measured, "-m", "not browser"], DATABASE_URL=postgres_url)
    browser = [*measured, "--cov-append", "-m", "browser"]
    suite.run("pytest in a browser", browser, DATABASE_URL=postgres_url)
    suite.run("pytest on SQLite", [*measured, "--cov-append", "-m", "not browser"])
    suite.run("coverage", [PYTHON, "-m", "coverage", "report"])


def terminated(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main(arguments: list[str]) -> int:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
        "DJANGO_SETTINGS_MODULE": "settings.test",
        "PYTHONDEVMODE": "1",
    }
    suite = Suite(environment)
    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGHUP, terminated)
    with postgres() as url:
        signal.signal(signal.SIGINT, suite.interrupt)
        if not arguments:
            for name, command in LINTERS.items():
                suite.run(name, command)
        run_tests(suite, url, arguments)
    return 0 if suite.summarise() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
