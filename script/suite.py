"""What `script/test` runs once Python has what it needs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import psutil

from script.postgres import private_server

# What speaks to the database itself; the rest is the same on each.
ON_MARIADB = (
    "tests/races",
    "tests/properties",
    "tests/crash/test_zombies.py",
    "tests/crash/test_recorded_writes.py",
    "tests/agentruns/test_mariadb.py",
    "tests/agentruns/test_mariadb_checks.py",
    "tests/agentruns/test_segment.py",
    "tests/agentruns/test_fence.py",
    "tests/agentruns/test_retention.py",
    "tests/agentruns/test_idle.py",
)
# What is the same on each database, and long or of many tests: PostgreSQL's run has it.
NOT_ON_SQLITE = (
    "tests/agentruns/admin/test_addresses.py",
    "tests/agentruns/admin/test_damaged.py",
    "tests/agentruns/admin/test_permissions.py",
    "tests/nrllm/test_approvals.py",
    "tests/nrllm/test_arguments.py",
    "tests/nrllm/test_checks.py",
    "tests/nrllm/test_dynamic.py",
    "tests/nrllm/test_failures.py",
    "tests/nrllm/test_hooks.py",
    "tests/nrllm/test_outcomes.py",
    "tests/nrllm/test_refusals.py",
    "tests/nrllm/test_subagents.py",
    "tests/nrllm/test_mcp.py",
    "tests/nrllm/test_wire.py",
    "tests/nrllm/test_anthropic_wire.py",
    "tests/nrllm/test_fuzz.py",
    "tests/nrllm/test_reports.py",
    "tests/nrllm/test_turns.py",
    "tests/nrllm/test_parking_processes.py",
    "tests/nrllm/test_verification_processes.py",
    "tests/agentruns/commands/test_install_reaper_schedule.py",
    "tests/servers",
    "tests/agentruns/testing/test_kit.py",
)
# What starts processes, kills them and waits for what comes of it: beside the rest, on PostgreSQL.
WITH_PROCESSES = (
    "tests/crash",
    "tests/harness",
    "tests/storm",
    "tests/upgrades",
    "tests/agentruns/testing",
    "tests/nrllm/test_crash.py",
    "tests/nrllm/test_parking_processes.py",
    "tests/nrllm/test_verification_processes.py",
    "tests/test_demonstration.py",
    "tests/test_packaging.py",
    "tests/test_testing_documentation.py",
    "tests/test_tutorial.py",
)
NO_TESTS_SELECTED = 5  # pytest's exit code
END_SECONDS = 10
NAME_WIDTH = 20
LINES_OF_A_FAILURE = 20
MOST_AT_ONCE = 3  # one of which waits most of its time
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
    "docs": [
        PYTHON,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "-q",
        "docs",
        "docs/_build",
    ],
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
    def failures(self) -> list[str]:
        """What to look at first: the tests that failed, or the end of what another command printed."""
        if self.passed:
            return []
        named = [line for line in self.lines if line.startswith(("FAILED ", "ERROR "))]
        return named or self.lines[-LINES_OF_A_FAILURE:]

    @property
    def outcome(self) -> str:
        closing = self.lines[-1].strip("= ") if self.lines else "no output"
        verdict = "passed" if self.passed else f"FAILED (exit code {self.code})"
        return f"{verdict}: {closing}" if self.is_pytest else verdict


@dataclass(frozen=True)
class Task:
    """A command to run, and what its environment has beyond the suite's."""

    name: str
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Suite:
    """Runs every task, whatever the earlier ones came to, unless a person presses Ctrl-C."""

    environment: Mapping[str, str]
    steps: list[Step] = field(default_factory=list)
    interrupted: bool = False

    def run_side_by_side(self, tasks: list[Task], at_once: int) -> None:
        """Run these tasks, so many at a time; one that waits for servers leaves its core to others."""
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            for ended in [pool.submit(self.run, task) for task in tasks]:
                ended.result()

    def run(self, task: Task) -> None:
        if self.interrupted:
            return
        print(f"== {task.name}: {shlex.join(task.command)}", flush=True)
        with subprocess.Popen(
            task.command,
            env={**self.environment, **task.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            lines = []
            try:
                for line in child.stdout or ():
                    print(f"{task.name:{NAME_WIDTH}} {line}", end="", flush=True)
                    if line.strip():
                        lines.append(COLOUR.sub("", line).rstrip())
                self.steps.append(Step(task.name, child.wait(), lines))
            finally:
                end(child)

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.interrupted = True  # a terminal sends Ctrl-C to the running step as well

    def summarise(self) -> bool:
        """Print how each step ended, what was skipped and what failed; return whether all is well."""
        print("\n== Summary")
        for step in self.steps:
            print(f"{step.name:22} {step.outcome}")
        for step in self.steps:
            for line in (*step.skipped, *step.failures):
                print(f"{step.name:22} {line}")
        if not self.environment.get("REDIS_URL"):
            print("Without REDIS_URL, the tests of the Redis broker did not run.")
        if not self.environment.get("MARIADB_URL"):
            print("Without MARIADB_URL, no test ran on MariaDB.")
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


def tasks_with(arguments: list[str], postgres_url: str) -> list[Task]:
    """What to run on each database when arguments for pytest were given."""
    pytest = [PYTHON, "-m", "pytest", *arguments]
    return [
        Task("pytest on PostgreSQL", pytest, {"DATABASE_URL": postgres_url}),
        Task("pytest on SQLite", pytest),
        *(Task("pytest on MariaDB", pytest, {"DATABASE_URL": url}) for url in mariadb_urls()),
    ]


def mariadb_urls() -> list[str]:
    """The server that MARIADB_URL names, if any: there is no private one."""
    url = os.environ.get("MARIADB_URL")
    return [url] if url else []


def all_tasks(postgres_url: str, coverage: Path) -> list[Task]:
    """Everything, the longest first.

    Where MEASURE_COVERAGE is set, it is measured on PostgreSQL, where nearly all of it runs: it makes
    tests half as slow again.
    """
    measures = bool(os.environ.get("MEASURE_COVERAGE"))

    def pytest(where: str, *arguments: str, **environment: str) -> Task:
        command = [PYTHON, "-m", "pytest", "--durations=12", *arguments]
        return Task(f"pytest {where}", command, environment)

    def measured(where: str, *arguments: str, **environment: str) -> Task:
        if not measures:
            return pytest(where, *arguments, **environment)
        data = str(coverage / f"coverage.{where.replace(' ', '-')}")
        return pytest(
            where, "--cov", "--cov-report=", *arguments, COVERAGE_FILE=data, **environment
        )

    no_browser = ["-m", "not browser"]
    return [
        measured(
            "on PostgreSQL",
            *no_browser,
            *(f"--ignore={path}" for path in (*WITH_PROCESSES, "tests/nrllm")),
            DATABASE_URL=postgres_url,
        ),
        # Databases of their own: some tests cut every connection to theirs.
        measured(
            "with processes",
            *no_browser,
            *WITH_PROCESSES,
            DATABASE_URL=beside(postgres_url, "processes"),
        ),
        measured(
            "of nrllm",
            *no_browser,
            "tests/nrllm",
            *(f"--ignore={path}" for path in WITH_PROCESSES),
            DATABASE_URL=beside(postgres_url, "nrllm"),
        ),
        *(Task(name, command) for name, command in LINTERS.items()),
        pytest("on SQLite", *no_browser, *(f"--ignore={path}" for path in NOT_ON_SQLITE)),
        *(
            pytest("on MariaDB", *no_browser, *ON_MARIADB, DATABASE_URL=url)
            for url in mariadb_urls()
        ),
        pytest("in a browser", "-m", "browser", DATABASE_URL=beside(postgres_url, "browser")),
    ]


def beside(url: str, suffix: str) -> str:
    """Return the URL of another database of the same server."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}_{suffix}"))


def report_coverage(suite: Suite, data: Path) -> None:
    combined = {"COVERAGE_FILE": str(data / "coverage")}
    measure = [PYTHON, "-m", "coverage"]
    suite.run(Task("coverage", [*measure, "combine", "--quiet", str(data)], combined))
    suite.run(Task("coverage report", [*measure, "report"], combined))


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
    at_once = min((os.cpu_count() or 1) + 1, MOST_AT_ONCE)
    with postgres() as url, tempfile.TemporaryDirectory(prefix="agentruns-coverage-") as folder:
        signal.signal(signal.SIGINT, suite.interrupt)
        if arguments:
            suite.run_side_by_side(tasks_with(arguments, url), at_once)
        else:
            suite.run_side_by_side(all_tasks(url, Path(folder)), at_once)
            if os.environ.get("MEASURE_COVERAGE"):
                report_coverage(suite, Path(folder))
    return 0 if suite.summarise() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
