from __future__ import annotations

import json
import math
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentruns.api import resolve
from agentruns.enums import Resolution
from agentruns.fields import Payload
from agentruns.models import AgentRun, Step
from tests.agentruns.cases import completed, interrupted, queued, running

from .conftest import Commands


def test_shows_where_the_fence_stands(command: Commands) -> None:
    run = interrupted()
    text = command("show_agent_run", str(run.uuid)).text
    assert "termination_reason: interrupted_write" in text
    assert "pending_effect: non_idempotent_write" in text
    assert "uncertain  <- THE FENCE STANDS HERE" in text
    assert "connection lost" in text


def test_as_json_it_has_the_steps_and_the_history(command: Commands) -> None:
    run = interrupted()
    said = command("show_agent_run", str(run.uuid), "--json").json
    assert said["uuid"] == str(run.uuid)
    assert [(step["key"], step["state"], step["fence"]) for step in said["steps"]] == [
        ("send", "uncertain", True)
    ]
    assert [event["kind"] for event in said["events"]] == ["queued", "claimed", "dead_lettered"]
    assert said["events"][-1]["data"]["reason"] == "interrupted_write"


def test_reads_no_payload_unless_asked(command: Commands) -> None:
    run = completed(request="a secret", output="another secret")
    with CaptureQueriesContext(connection) as queries:
        said = command("show_agent_run", str(run.uuid), "--json")
    assert "secret" not in said.text
    assert len(queries) == 3
    sent = " ".join(query["sql"] for query in queries)
    assert not any(f'"{column}"' in sent for column in ("request", "output", "arguments", "result"))


def test_shows_the_payloads_when_asked(command: Commands) -> None:
    run = completed(request="a question", output="an answer")
    said = command("show_agent_run", str(run.uuid), "--payloads", "--json").json
    assert (said["request"], said["output"]) == ("a question", "an answer")
    assert said["steps"][0]["arguments"] == {"of": "read"}
    text = command("show_agent_run", str(run.uuid), "--payloads").text
    assert 'output: "an answer"' in text
    assert 'arguments: {"of": "read"}' in text


def test_a_damaged_payload_is_shown_as_such(command: Commands) -> None:
    run = completed()
    Step.objects.filter(run=run).update(result=Payload("9:what is this"))
    said = command("show_agent_run", str(run.uuid), "--payloads", "--json").json
    assert "unreadable" in said["steps"][0]["result"]


def test_what_strangers_wrote_does_nothing_to_a_terminal(command: Commands) -> None:
    run = interrupted()
    Step.objects.filter(run=run).update(error="\x1b[2Jcleared\nsecond line")
    text = command("show_agent_run", str(run.uuid)).text
    assert "\\x1b[2Jcleared\\x0asecond line" in text


def test_a_run_without_steps_is_shown(command: Commands) -> None:
    run = queued()
    text = command("show_agent_run", str(run.uuid)).text
    assert "no steps" in text
    assert text.rstrip().endswith("  queued")


def test_says_that_there_is_no_such_run(command: Commands) -> None:
    assert not AgentRun.objects.exists()
    missing = uuid4()
    assert f"there is no run {missing}" in str(command("show_agent_run", str(missing)).failure)
    assert "is not a uuid" in str(command("show_agent_run", "nonsense").failure)


def test_a_run_that_nobody_reaped_says_what_to_do(command: Commands) -> None:
    stale, alive = running(stale=True)[0], running()[0]
    said = command("show_agent_run", str(stale.uuid))
    assert "its lease ran out at 2" in said.text
    assert "no reaper has swept since: run manage.py reap_stale_agent_runs" in said.text
    assert "no reaper" not in command("show_agent_run", str(alive.uuid)).text
    for run, judged in ((stale, True), (alive, False)):
        assert command("show_agent_run", str(run.uuid), "--json").json["stale"] is judged


@pytest.mark.parametrize("verdict", list(Resolution))
def test_says_who_gave_a_verdict_and_when(command: Commands, verdict: Resolution) -> None:
    run = interrupted()
    digest = run.resolution_digest()
    result: Any = {"result": 7} if verdict is Resolution.HAPPENED else {}
    resolve(run.uuid, verdict, by="ada", reason="seen", digest=digest, **result)
    summary = command("show_agent_run", str(run.uuid)).text.partition("steps:")[0]
    assert "resolved_by: ada" in summary
    assert "resolved_at: 2" in summary


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_nan_and_infinities_are_printed_as_strings(command: Commands) -> None:
    run = completed(output={"mean": [math.nan, math.inf, -math.inf, 0.5]})
    said = command("show_agent_run", str(run.uuid), "--payloads", "--json").text
    shown = json.loads(said, parse_constant=refuse)
    assert shown["output"] == {"mean": ["NaN", "Infinity", "-Infinity", 0.5]}
    text = command("show_agent_run", str(run.uuid), "--payloads").text
    assert '"mean": ["NaN", "Infinity", "-Infinity", 0.5]' in text
