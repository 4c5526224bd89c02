from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
from django.db import connection

from tests.harness.environment import database_url
from tests.servers.waiting import wait_until


def processes_of_the_database(url: str) -> list[str]:
    """Describe every other process that was started to work on this test's database."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = {} if process.pid == os.getpid() else process.environ()
            started_by_a_test = "TEST_AGENTRUNS" in environment
            if started_by_a_test and environment.get("DATABASE_URL") == url:
                found.append(f"{process.pid} {process.status()} {process.cmdline()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process; it is set up first, so that it looks when all has ended."""
    yield
    if connection.settings_dict["NAME"]:
        url = database_url()
        wait_until(
            lambda: not processes_of_the_database(url),
            what=lambda: f"the end of {processes_of_the_database(url)}",
        )
