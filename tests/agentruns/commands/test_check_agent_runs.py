from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from agentruns import figures
from agentruns.enums import Resolution
from agentruns.guard import from_now
from agentruns.management.commands.check_agent_runs import DEFAULT_LIMITS, STATES, option
from agentruns.models import AgentRun
from agentruns.models.querysets import AgentRunQuerySet
from tests.agentruns.cases import asking, completed, exhausted, interrupted, queued, running
from tests.harness.manage import run_manage

pytestmark = pytest.mark.django_db(transaction=True)


def check(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("check_agent_runs", *arguments, stdout=out)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue()


def found(*arguments: str) -> dict[str, Any]:
    _code, said = check(*arguments, "--json")
    return {figure["name"]: figure for figure in json.loads(said)["figures"]}


def older(run: AgentRun, column: str, seconds: float) -> None:
    AgentRun.objects.filter(pk=run.pk).write_guarded(**{column: from_now(-seconds)})


def test_all_is_well_where_nothing_waits() -> None:
    completed()
    code, said = check("--max-unresolved-age", "1h")
    assert code == 0
    assert said.startswith("OK: unresolved 0, waiting 0, due 0, stale 0 | unresolved=0 ")
    assert "unresolved_age=0s;;3600" in said


def test_what_waits_is_counted_and_harms_nobody_within_its_time() -> None:
    oldest, _other = interrupted(), interrupted()
    exhausted()
    parked, due, stale = asking(), queued(), running(stale=True)[0]
    figures_found = found("--max-unresolved-age", "1h")
    assert {name: (f["count"], f["oldest"], f["state"]) for name, f in figures_found.items()} == {
        "unresolved": (2, str(oldest.uuid), 0),
        "waiting": (1, str(parked.uuid), 0),
        "due": (1, str(due.uuid), 0),
        "stale": (1, str(stale.uuid), 0),
    }


@pytest.mark.parametrize(
    ("arguments", "code", "state"),
    [
        (["--max-unresolved-age", "2h"], 0, "OK"),
        (["--warn-unresolved-age", "30m", "--max-unresolved-age", "2h"], 1, "WARNING"),
        (["--warn-unresolved-age", "30m", "--max-unresolved-age", "3000s"], 2, "CRITICAL"),
        (["--max-waiting-age", "0"], 0, "OK"),
    ],
)
def test_the_exit_code_is_what_monitoring_expects(
    arguments: list[str], code: int, state: str
) -> None:
    run = interrupted()
    older(run, "finished_at", 3600)
    ended, said = check(*arguments)
    assert (ended, said.partition(":")[0]) == (code, state)


COLUMNS = {"unresolved": "finished_at", "due": "available_at", "stale": "lease_expires_at"}


@pytest.mark.parametrize(
    ("name", "seconds", "state"),
    [
        ("unresolved", 0, "OK"),
        ("unresolved", 513, "WARNING"),
        ("unresolved", 4000, "CRITICAL"),
        ("due", 200, "OK"),
        ("due", 400, "WARNING"),
        ("due", 1000, "CRITICAL"),
        ("stale", 60, "OK"),
        ("stale", 200, "WARNING"),
        ("stale", 700, "CRITICAL"),
    ],
)
def test_without_limits_it_judges_by_defaults(name: str, seconds: int, state: str) -> None:
    makers = {"unresolved": interrupted, "due": queued, "stale": lambda: running(stale=True)[0]}
    older(makers[name](), COLUMNS[name], seconds)
    code, said = check()
    assert (STATES[code], said.partition(":")[0]) == (state, state)


def test_without_limits_a_question_that_waits_for_long_is_a_warning() -> None:
    run = asking()
    assert check()[0] == 0
    run.journal().update(started_at=Now() - timedelta(days=2))
    assert check()[0] == 1


def test_a_limit_that_is_given_is_the_only_one() -> None:
    older(interrupted(), "finished_at", 4000)
    assert check("--max-due-age", "1h")[0] == 0
    assert found("--max-due-age", "0")["unresolved"]["max_age_seconds"] is None
    assert found()["unresolved"]["max_age_seconds"] == 3600


def test_the_default_limits_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    entry = page.partition("### check_agent_runs")[2].partition("### ")[0]
    said = " ".join(entry.split())
    for name, limit in DEFAULT_LIMITS.items():
        assert f"`{option(name)} {limit}`" in said


@pytest.mark.parametrize(
    ("name", "column"), [("due", "available_at"), ("stale", "lease_expires_at")]
)
def test_ages_are_since_they_began_to_wait(name: str, column: str) -> None:
    run = queued() if name == "due" else running(stale=True)[0]
    older(run, column, 7200)
    assert 7200 <= found()[name]["age_seconds"] < 7300
    assert check(f"--max-{name}-age", "1h")[0] == 2


def test_a_question_is_as_old_as_its_asking() -> None:
    run = asking()
    older(run, "created_at", 7200)
    assert found()["waiting"]["age_seconds"] < 3600
    run.journal().update(started_at=Now() - timedelta(hours=2))
    assert check("--warn-waiting-age", "1h")[0] == 1


def test_a_verdict_ends_the_alarm() -> None:
    run = interrupted()
    older(run, "finished_at", 3600)
    assert check("--max-unresolved-age", "1m")[0] == 2
    run.resolve(Resolution.LEFT, by="ada", reason="known", digest=run.resolution_digest())
    assert check("--max-unresolved-age", "1m")[0] == 0


def test_a_database_that_is_away_is_unknown_and_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(AgentRunQuerySet, "first", fail)
    code, said = check("--max-due-age", "1h")
    assert (code, said.strip()) == (
        3,
        "UNKNOWN: OperationalError: the server closed the connection",
    )


def test_it_counts_no_further_than_it_must_and_reads_no_payload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "COUNTED", 2)
    for _ in range(4):
        queued(request="secret")
    with CaptureQueriesContext(connection) as queries:
        due = found()["due"]
    assert (due["count"], due["more"]) == (2, True)
    assert all("LIMIT" in query["sql"] for query in queries)
    assert '"request"' not in " ".join(query["sql"] for query in queries)


@pytest.mark.parametrize("wrong", ["soon", "1w", "-1h", ""])
def test_refuses_what_is_no_length_of_time(wrong: str) -> None:
    with pytest.raises(Exception, match="such as 90, 90s, 15m, 1h, 2d"):
        call_command("check_agent_runs", f"--max-due-age={wrong}")


def test_the_process_ends_with_the_code() -> None:
    older(queued(), "available_at", 7200)
    ended = run_manage("check_agent_runs", "--max-due-age", "1h")
    assert ended.returncode == 2
    assert ended.stdout.startswith("CRITICAL: ")
    assert ended.stderr == ""


@pytest.mark.parametrize("command", ["check_agent_runs", "reap_stale_agent_runs"])
def test_tables_that_are_missing_are_to_be_migrated(command: str, tmp_path: Path) -> None:
    empty: dict[str, Any] = {"DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
    said = run_manage(command, **empty)
    assert said.returncode == (3 if command == "check_agent_runs" else 1)
    assert "run manage.py migrate" in said.stdout + said.stderr
