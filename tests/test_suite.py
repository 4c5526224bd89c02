from __future__ import annotations

import sys

import pytest

from script.suite import NO_TESTS_SELECTED, Step, Suite


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
    suite.run("pytest again", [sys.executable, "-c", ""])
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


def test_a_step_runs_in_the_environment_of_the_suite_and_its_own(suite: Suite) -> None:
    code = "import os; print(os.environ['REDIS_URL'], os.environ['DATABASE_URL'])"
    suite.run("pytest", [sys.executable, "-c", code], DATABASE_URL="postgres://")
    assert suite.steps == [Step("pytest", 0, ["redis://127.0.0.1 postgres://"])]
