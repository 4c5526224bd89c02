"""Fixtures with which tests run, kill and watch real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from agentruns.testing.client import RecorderClient
from tests.servers.client import SmtpClient, WireClient
from tests.servers.process import ServerProcess

from .processes import SyncRunProcess
from .qcluster import QCluster


class StartQCluster(Protocol):
    def __call__(self, **options: Any) -> QCluster: ...


@pytest.fixture
def recorder() -> Iterator[RecorderClient]:
    """The independent witness, empty."""
    with ServerProcess("agentruns.testing.recorder") as server:
        yield RecorderClient(server.url)


@pytest.fixture
def recorder_url(recorder: RecorderClient) -> str:
    return f"http://{recorder.address}"


@pytest.fixture
def start_qcluster(
    transactional_db: None, recorder_url: str, tmp_path: Path
) -> Iterator[StartQCluster]:
    """Start a cluster on the test's database; it is killed when the test ends.

    Its options are those of `QCluster`. What it printed is shown when the test fails.
    """
    with ExitStack() as stack:
        clusters: list[QCluster] = []

        def start(**options: Any) -> QCluster:
            directory = tmp_path / f"qcluster-{len(clusters)}"
            directory.mkdir()
            cluster = QCluster(directory, **{"recorder_url": recorder_url, **options})
            clusters.append(cluster)
            return stack.enter_context(cluster)

        yield start
        for cluster in clusters:
            print(cluster.output())


@pytest.fixture
def qcluster(start_qcluster: StartQCluster) -> QCluster:
    """A cluster with one worker."""
    return start_qcluster(workers=1)


@pytest.fixture
def start_sync_run(
    transactional_db: None, recorder_url: str
) -> Iterator[Callable[..., SyncRunProcess]]:
    """Start a synchronous run in a process of its own; it is killed when the test ends."""
    with ExitStack() as stack:

        def start(agent: str, request: Any = None, **options: Any) -> SyncRunProcess:
            options = {"recorder_url": recorder_url, **options}
            return stack.enter_context(SyncRunProcess(agent, request, **options))

        yield start


class Smtp(SmtpClient):
    """A real SMTP server: where to send mail (`host`, `port`), and what has arrived."""

    host = "127.0.0.1"

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(f"http://127.0.0.1:{server.ready['control_port']}")
        self.port = server.port


@pytest.fixture
def smtp_server() -> Iterator[Smtp]:
    with ServerProcess("smtp") as server:
        yield Smtp(server)


class Wire(WireClient):
    """A local model endpoint: `url` is what a provider's client takes as its base URL."""

    def __init__(self, server: ServerProcess, path: str) -> None:
        super().__init__(server.url)
        self.url = server.url + path


@pytest.fixture
def openai_wire() -> Iterator[Wire]:
    with ServerProcess("openai_wire") as server:
        yield Wire(server, "/v1")


@pytest.fixture
def anthropic_wire() -> Iterator[Wire]:
    with ServerProcess("anthropic_wire") as server:
        yield Wire(server, "")
