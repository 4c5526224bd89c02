from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.client import SmtpClient, WireClient
from tests.servers.cluster import ClusterProcess
from tests.servers.process import ROOT, ServerProcess

from .model import MODEL_URL, real_model, script
from .shop import ORDERS, SMTP_PORT

# Everything that a demonstration leaves behind, and that the next one removes.
FILES = (
    "db.sqlite3",
    "db.sqlite3-wal",
    "db.sqlite3-shm",
    "mail.jsonl",
    "model.jsonl",
    "qcluster.log",
)
# The mail server keeps the sender of an e-mail to this customer waiting.
HELD_ORDER = 1002


class AlreadyRunning(RuntimeError):
    """Another demonstration uses this folder at the moment."""


@dataclass(frozen=True)
class World:
    """The real processes around the three runs."""

    mail: SmtpClient
    endpoint: WireClient | None  # None where the model is a real provider's
    cluster: ClusterProcess
    environment: dict[str, str]
    model: str

    def reap(self) -> dict[str, Any]:
        """Run one sweep, by the command that an operator runs."""
        completed = subprocess.run(
            [sys.executable, "manage.py", "reap_stale_agent_runs", "--json"],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if completed.returncode != 0:
            raise RuntimeError(f"reap_stale_agent_runs failed:\n{completed.stderr}")
        report: dict[str, Any] = json.loads(completed.stdout)
        return report


@contextmanager
def clean_directory(directory: Path) -> Iterator[None]:
    """Own the folder, empty of what an earlier demonstration left."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"another demonstration is using {directory}") from None
        for name in FILES:
            (directory / name).unlink(missing_ok=True)
        yield


@contextmanager
def model_endpoint(directory: Path) -> Iterator[WireClient | None]:
    """Start the local model endpoint, unless there is a key for a real one."""
    if real_model() is not None:
        yield None
        return
    path = directory / "script.json"
    path.write_text(json.dumps(script(), indent=2), encoding="utf-8")
    log = directory / "model.jsonl"
    with ServerProcess("openai_wire", "--script", str(path), "--log", str(log)) as server:
        yield WireClient(server.url)


@contextmanager
def mail_server(directory: Path) -> Iterator[ServerProcess]:
    log = directory / "mail.jsonl"
    held = ORDERS[HELD_ORDER].email
    with ServerProcess("smtp", "--log", str(log), "--hold", held) as server:
        yield server


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Start the mail server, the model and the cluster; end every one of them afterwards."""
    with mail_server(directory) as mail, model_endpoint(directory) as endpoint:
        environment = {
            **os.environ,
            MODEL_URL: f"http://{endpoint.address}/v1" if endpoint else "",
            "DJANGO_SETTINGS_MODULE": "settings.demo",
            "AGENTRUNS_DEMO_DIR": str(directory),
            SMTP_PORT: str(mail.port),
        }
        with ClusterProcess(directory / "qcluster.log", environment) as cluster:
            yield World(
                mail=SmtpClient(f"http://127.0.0.1:{mail.ready['control_port']}"),
                endpoint=endpoint,
                cluster=cluster,
                environment=environment,
                model=real_model() or "a local endpoint that speaks OpenAI's wire format",
            )
