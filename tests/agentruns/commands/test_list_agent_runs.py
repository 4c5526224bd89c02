from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentruns.models import AgentRun
from tests.agentruns.cases import asking, completed, failed, interrupted, queued, running, writing

from .conftest import Commands


def listed(command: Commands, *arguments: str) -> list[str]:
    return [run["uuid"] for run in command("list_agent_runs", *arguments, "--json").json]


def test_lists_the_newest_first(command: Commands) -> None:
    first, second = queued(), queued()
    assert listed(command) == [str(second.uuid), str(first.uuid)]
    assert listed(command, "--limit", "1") == [str(second.uuid)]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--status", "queued"], {"queued"}),
        (["--status", "queued", "--status", "completed"], {"queued", "completed"}),
        (["--reason", "not_retryable"], {"failed"}),
        (["--agent", "reads"], {"completed"}),
        (["--correlation-id", "order 7"], {"queued"}),
        (["--requested-by", "ada"], {"running"}),
        (["--fenced"], {"interrupted", "writing"}),
        (["--unresolved"], {"interrupted"}),
        (["--dead-lettered"], {"interrupted", "failed"}),
        (["--dead-lettered", "--fenced"], {"interrupted"}),
        (["--waiting"], {"waiting"}),
        (["--stale"], {"stale"}),
        (["--due"], {"queued"}),
    ],
)
def test_filters(command: Commands, arguments: list[str], found: set[str]) -> None:
    runs: dict[str, AgentRun] = {
        "queued": queued(correlation_id="order 7"),
        "running": running(requested_by="ada")[0],
        "stale": running(stale=True)[0],
        "writing": writing()[0],
        "interrupted": interrupted(),
        "failed": failed(),
        "completed": completed(agent="reads"),
        "waiting": asking(),
    }
    names = {str(run.uuid): name for name, run in runs.items()}
    assert {names[uuid] for uuid in listed(command, *arguments)} == found


def test_reads_no_payload_and_asks_once(command: Commands) -> None:
    for _ in range(3):
        completed(request="secret", output="secret")
    with CaptureQueriesContext(connection) as queries:
        said = command("list_agent_runs", "--json")
    assert len(queries) == 1
    assert '"request"' not in queries[0]["sql"]
    assert "secret" not in said.text


def test_as_text_it_is_a_table(command: Commands) -> None:
    run = interrupted()
    head, row = command("list_agent_runs").text.splitlines()
    assert head.split() == ["run", "status", "reason", "fence", "inside", "retries", "agent"]
    assert row.split() == [
        str(run.uuid),
        "failed",
        "interrupted_write",
        "non_idempotent_write",
        "send",
        "0",
        "echo",
    ]


def test_refuses_a_status_that_does_not_exist(command: Commands) -> None:
    assert "invalid choice" in str(command("list_agent_runs", "--status", "done").failure)
