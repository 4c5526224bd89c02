from __future__ import annotations

import sys
from pathlib import Path

import pytest

from script.suite import NO_TESTS_SELECTED, NOT_ON_SQLITE, Step, Suite, Task
from tests.servers.process import ROOT


@pytest.fixture
def suite() -> Suite:
    return Suite({"REDIS_URL": "redis://127.0.0.1"})


def pytest_ended(code: int, *lines: str) -> Step:
    return Step("pytest on a database", code, list(lines))


def test_all_is_well_when_each_step_passed(suite: Suite) -> None:
    suite.steps = [Step("mypy", 0, []), pytest_ended(0), pytest_ended(0)]
    assert suite.summarise()


@pytest.mark.parametrize("code", [1, 2, 3, 4, -9])
def test_one_step_that_failed_fails_the_suite(suite: Suite, code: int) -> None:
    suite.steps = [pytest_ended(0), pytest_ended(code)]
    assert not suite.summarise()


def test_a_linter_passes_with_exit_code_zero_only(suite: Suite) -> None:
    suite.steps = [Step("mypy", NO_TESTS_SELECTED, []), pytest_ended(0)]
    assert not suite.summarise()


def test_tests_of_one_database_may_select_nothing_on_the_other(suite: Suite) -> None:
    suite.steps = [pytest_ended(0), pytest_ended(NO_TESTS_SELECTED)]
    assert suite.summarise()


def test_a_suite_that_ran_no_test_fails(suite: Suite) -> None:
    suite.steps = [pytest_ended(NO_TESTS_SELECTED), pytest_ended(NO_TESTS_SELECTED)]
    assert not suite.summarise()


def test_an_interrupted_suite_fails_and_runs_no_further_step(suite: Suite) -> None:
    suite.steps = [pytest_ended(0)]
    suite.interrupted = True
    suite.run(Task("pytest again", [sys.executable, "-c", ""]))
    assert len(suite.steps) == 1
    assert not suite.summarise()


def test_the_summary_tells_what_was_skipped_and_pytests_closing_line(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = "SKIPPED [1] tests/test_redis.py:7: REDIS_URL names no Redis server"
    suite.steps = [pytest_ended(0, skipped, "===== 3 passed, 1 skipped in 1.00s =====")]
    suite.summarise()
    summary = capsys.readouterr().out
    assert "passed: 3 passed, 1 skipped in 1.00s\n" in summary
    assert skipped in summary


def test_the_summary_names_the_tests_that_failed(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = "FAILED tests/test_lease.py::test_a_lease - assert 1 == 2"
    suite.steps = [pytest_ended(1, "noise", failed, "===== 1 failed in 1.00s =====")]
    suite.summarise()
    summary = capsys.readouterr().out
    assert failed in summary
    assert "noise" not in summary


def test_the_summary_repeats_the_end_of_another_command_that_failed(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.steps = [Step("mypy", 1, ["lease.py:3: error: no"]), Step("ruff", 0, ["all good"])]
    suite.summarise()
    summary = capsys.readouterr().out
    assert "lease.py:3: error: no" in summary
    assert "all good" not in summary


def test_a_step_runs_in_the_environment_of_the_suite_and_its_own(suite: Suite) -> None:
    code = "import os; print(os.environ['REDIS_URL'], os.environ['DATABASE_URL'])"
    suite.run(Task("pytest", [sys.executable, "-c", code], {"DATABASE_URL": "postgres://"}))
    assert suite.steps == [Step("pytest", 0, ["redis://127.0.0.1 postgres://"])]


def test_tasks_run_side_by_side_and_each_line_tells_whose_it_is(
    suite: Suite, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    meet = (
        "import pathlib, sys, time\n"
        "mine, other = map(pathlib.Path, sys.argv[1:])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "print('met')"
    )
    names = ["first", "second"]
    paths = [str(tmp_path / name) for name in names]
    tasks = [
        Task(name, [sys.executable, "-c", meet, *order])
        for name, order in zip(names, (paths, paths[::-1]), strict=True)
    ]
    suite.run_side_by_side(tasks, at_once=2)
    assert sorted(step.name for step in suite.steps if step.passed) == names
    printed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in printed if line.endswith(" met")} == set(names)


def test_what_is_for_sqlite_alone_is_left_out_of_no_run() -> None:
    left_out = [ROOT / path for path in NOT_ON_SQLITE]
    files = [
        file for path in left_out for file in (path.rglob("*.py") if path.is_dir() else [path])
    ]
    assert files
    assert [file.name for file in files if "mark.sqlite" in file.read_text()] == []
