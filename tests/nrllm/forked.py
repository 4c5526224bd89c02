"""Worker processes that are forked from one which has read everything once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from django.db.models.functions import Now

from agentruns.models import AgentRun
from tests.harness.environment import subprocess_environment
from tests.servers.process import ROOT
from tests.servers.waiting import wait_until

# A lease that a busy machine does not let run out: where a worker died, the test ends it.
WORKERS = {"LEASE_SECONDS": 60, "HEARTBEAT_SECONDS": 0.5, "VERIFY_BACKOFF_SECONDS": 0.1}


def work(run: AgentRun, log: Path, *point: str) -> int:
    """Have a process execute one segment; return its exit code, negative for a signal.

    A run that waits for its retry is waited for: a process is there before that. For tests that use
    `forked_workers`, which ends the process that these are forked from.
    """
    asked, told = host().stdin, host().stdout
    assert asked
    assert told
    delayed = AgentRun.objects.queued().filter(pk=run.pk, available_at__gt=Now())
    wait_until(lambda: not delayed.exists(), what="the time of its retry")
    print(json.dumps([str(run.uuid), str(log), *point]), file=asked, flush=True)
    code = json.loads(told.readline())
    said = Path(f"{log}.said")
    assert code in (0, -signal.SIGKILL), (code, said.read_text() if said.exists() else "")
    return int(code)


@cache
def host() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nrllm.worker"],
        cwd=ROOT,
        env=subprocess_environment(agentruns=WORKERS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end_host() -> None:
    if host.cache_info().currsize:
        host().communicate()
        host.cache_clear()
