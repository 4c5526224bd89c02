from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from script.demonstration.model import conversation
from script.demonstration.shop import ORDERS, task
from tests.servers.process import ROOT
from tests.servers.waiting import wait_until

# It has a database of its own; once is enough.
pytestmark = pytest.mark.sqlite

MODEL_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a demonstration without a key, in a folder of this test's."""
    started: list[subprocess.Popen[str]] = []
    environment = {k: v for k, v in os.environ.items() if k not in MODEL_KEYS}

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "script.demonstration", *arguments],
            cwd=ROOT,
            env={**environment, "AGENTRUNS_DEMO_DIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    # Where the tests themselves run in a shell's background, Ctrl-C is ignored, and would be there.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, former)
    for process in started:
        process.kill()
        process.communicate()
    wait_until(lambda: not processes_of(tmp_path), what=lambda: processes_of(tmp_path))


def processes_of(directory: Path) -> list[str]:
    """Describe the processes that work in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            where = process.environ().get("AGENTRUNS_DEMO_DIR")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if where == str(directory) and process.pid != os.getpid():
            found.append(f"{process.pid}: {command}")
    return found


def begun(directory: Path) -> bool:
    """Return whether its first e-mail has gone out."""
    return (directory / "mail.jsonl").exists()


@pytest.mark.timeout(700)
def test_shows_three_runs_twice_in_a_row(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    for _ in range(2):
        process = start("--json")
        report, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert not processes_of(tmp_path)
        facts: dict[str, Any] = json.loads(report)
        assert facts["ok"]
        assert [(run["status"], run["reason"]) for run in facts["runs"]] == [
            ("completed", "completed"),
            ("failed", "interrupted_write"),
            ("completed", "completed"),
        ]
        assert len({email["idempotency_key"] for email in facts["emails"]}) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_leaves_no_process_when_it_is_stopped(
    number: int, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start()
    wait_until(lambda: begun(tmp_path), 120, "the first e-mail")
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode != 0
    wait_until(lambda: not processes_of(tmp_path), what=lambda: processes_of(tmp_path))


def test_two_at_a_time_are_refused(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = start()
    wait_until(lambda: begun(tmp_path), 120, "the first e-mail")
    first.send_signal(signal.SIGSTOP)  # so that it is still there when the second has started
    second = start()
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 2
    assert "another demonstration" in errors


@pytest.mark.timeout(700)
def test_its_agent_keeps_its_promises_wherever_its_worker_is_killed(tmp_path: Path) -> None:
    order = ORDERS[1001]
    answers = [said.get("text", said) for said in conversation(order)]
    done = subprocess.run(
        [
            *(sys.executable, "manage.py", "crash_agent_run", "support_desk", "--json"),
            *("--request", json.dumps(task(order)), "--answers", json.dumps(answers)),
            *("--setup", "script.demonstration.pretend.mail"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings.demo",
            "AGENTRUNS_DEMO_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["effects_undisturbed"] == {"e-mail": 1}
    ends = {(cell["name"], cell["point"]): cell["outcome"] for cell in report["cells"]}
    assert len(ends) >= 10
    dead = [place for place, outcome in ends.items() if outcome == "dead-lettered"]
    inside = ("after_stamp", "in_body", "before_record", "in_record")
    assert dead == [("send_email", point) for point in inside]
    assert set(ends.values()) == {"resumed", "dead-lettered"}
