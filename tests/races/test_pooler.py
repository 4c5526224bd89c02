"""Workers behind PgBouncer in transaction mode, with Django's defaults: no prepared statements."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.db import connection, connections

from agentruns.reaper import sweep
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.factories import READ, WRITE, expire, queued, registered, reread, running
from tests.servers.waiting import wait_until

from .rivals import PATIENCE, together

# Debian puts it where only root's PATH goes.
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
SERVER_CONNECTIONS = 3
WORKERS = 4

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} {password}
[pgbouncer]
listen_port = {own_port}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
unix_socket_dir = {folder}
ignore_startup_parameters = options,extra_float_digits
"""


PORT = 6432  # only the name of a socket in a folder of its own: nobody else can have taken it


def unprivileged() -> dict[str, Any]:
    """PgBouncer refuses to run as root."""
    return {"user": pwd.getpwnam("nobody").pw_uid} if os.geteuid() == 0 else {}


def answers(folder: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the pooler has ended"
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(folder / f".s.PGSQL.{PORT}")) == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose name is short enough for a socket's, and which the pooler may write to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def pooler(folder: Path) -> Iterator[None]:
    """Have every new connection of this process go through the pooler; the test's own stays."""
    connections["default"].ensure_connection()
    settings, file = connections.settings["default"], folder / "pgbouncer.ini"
    file.write_text(
        CONFIGURATION.format(
            host=settings["HOST"] or "127.0.0.1",
            port=settings["PORT"] or 5432,
            user=settings["USER"],
            password=f"password={settings['PASSWORD']}" if settings["PASSWORD"] else "",
            own_port=PORT,
            folder=folder,
            size=SERVER_CONNECTIONS,
        )
    )
    file.chmod(0o644)
    process = subprocess.Popen(
        [str(PGBOUNCER), "-q", str(file)], stderr=subprocess.DEVNULL, **unprivileged()
    )
    before = {name: settings[name] for name in ("HOST", "PORT")}
    try:
        wait_until(lambda: answers(folder, process), PATIENCE, "the pooler to answer")
        settings.update(HOST=str(folder), PORT=str(PORT))
        yield
    finally:
        settings.update(before)
        process.terminate()
        process.wait()


def agent(segment: Segment) -> int:
    for number in range(5):
        segment.step("read", lambda key: number, effect=READ, key=f"read {number}")  # noqa: B023
        segment.step("write", lambda key: number, effect=WRITE, key=f"write {number}")  # noqa: B023
    return number


def test_more_workers_than_server_connections_complete_their_runs(
    pooler: None, folder: Path
) -> None:
    with registered(agent) as name:
        runs = [queued(name) for _ in range(WORKERS * 2)]

        def work(number: int) -> Any:
            def execute_some() -> str:
                for run in runs[number::WORKERS]:
                    execute(str(run.uuid))
                return str(connection.settings_dict["HOST"])

            return execute_some

        workers = together(*[work(number) for number in range(WORKERS)])
    hosts = {worker.outcome() for worker in workers}
    assert hosts == {str(folder)}
    for run in runs:
        assert reread(run).status == "completed", reread(run).error_message
        assert run.journal().recorded().count() == 10


def test_a_reaper_behind_it_reaps_by_sets(pooler: None) -> None:
    runs = [running()[0] for _ in range(20)]
    for run in runs:
        expire(run)
    [reaper] = together(lambda: len(sweep().runs))
    assert reaper.outcome() == 20
    assert {reread(run).status for run in runs} == {"queued"}
