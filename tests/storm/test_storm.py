from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.servers.process import ROOT

# Among its first deeds are four workers killed, others paused and terminated, and a crash of PostgreSQL.
SEED = "5500"


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_a_short_storm_repeats_no_write_loses_no_run_and_breaks_no_promise() -> None:
    command = [sys.executable, "-m", "tests.storm", "--json", "--seed", SEED, "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    report = json.loads(done.stdout)
    assert (report["repeats"], report["lost"], report["broken"]) == ([], [], [])
    assert sum(report["outcomes"].values()) == report["runs"] > 0
    assert report["deeds"]["kill_worker"] > 0
