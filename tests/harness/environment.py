from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.db import connections

from tests.project.apps import CLOCK_OFFSET, RECORDER_URL
from tests.servers.process import ROOT

# The lease and the steps are long enough for a busy machine, which may pause any process for
# seconds: a test ends the lease of a dead worker (`end_lease`), or has workers with a shorter one.
AGENTRUNS: dict[str, Any] = {
    "LEASE_SECONDS": 20.0,
    "HEARTBEAT_SECONDS": 5.0,
    "MAX_STEP_SECONDS": 600.0,
    "RETRY_BACKOFF_SECONDS": 0.05,
    "RETRY_BACKOFF_MAX_SECONDS": 0.2,
    "WAKE_AGAIN_SECONDS": 0.2,
    "RECORD_RETRY_SECONDS": 30.0,
}

Q_CLUSTER: dict[str, Any] = {
    "scheduler": False,
    # A worker is held in a body for as long as a test takes.
    "timeout": 700,
    "retry": 800,
}


def database_url(alias: str = "default") -> str:
    """Return the URL of the database that this process is connected to, for a subprocess."""
    settings = connections[alias].settings_dict
    if connections[alias].vendor == "sqlite":
        return sqlite_url(str(settings["NAME"]))
    scheme = {"postgresql": "postgresql", "mysql": "mysql"}[connections[alias].vendor]
    user = quote(str(settings.get("USER") or ""), safe="")
    password = quote(str(settings.get("PASSWORD") or ""), safe="")
    credentials = f"{user}:{password}@" if password else f"{user}@" if user else ""
    # A host that is a directory is the path of a socket: it is quoted whole.
    host = quote(str(settings.get("HOST") or ""), safe="")
    port = f":{settings['PORT']}" if settings.get("PORT") else ""
    return f"{scheme}://{credentials}{host}{port}/{quote(str(settings['NAME']))}"


def sqlite_url(name: str) -> str:
    if "mode=memory" in name or name == ":memory:":
        raise RuntimeError("a database in memory can't be shared with another process")
    return f"sqlite:///{Path(name).resolve()}"


def subprocess_environment(
    *,
    recorder_url: str = "",
    agentruns: dict[str, Any] | None = None,
    q_cluster: dict[str, Any] | None = None,
    clock_offset: float = 0,
    root: Path = ROOT,
    **more: str,
) -> dict[str, str]:
    """Return the environment of a process that works on this test's database, with the code in `root`."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "settings.test",
        "DATABASE_URL": database_url(),
        "TEST_AGENTRUNS": json.dumps({**AGENTRUNS, **(agentruns or {})}),
        "TEST_Q_CLUSTER": json.dumps({**Q_CLUSTER, **(q_cluster or {})}),
        "PYTHONPATH": str(root),
        "PYTHONUNBUFFERED": "1",
        RECORDER_URL: recorder_url,
        CLOCK_OFFSET: str(clock_offset),
        **more,
    }
