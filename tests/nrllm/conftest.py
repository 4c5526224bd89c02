from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nrllm import registration
from tests.nrllm.forked import end_host
from tests.servers.client import WireClient
from tests.servers.process import ServerProcess


@pytest.fixture(autouse=True)
def own_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test register agents of its own."""
    monkeypatch.setattr(registration, "_agents", {})


@pytest.fixture
def settings_for_runs(settings: Any, transactional_db: None) -> Any:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "DISPATCHER": "tests.nrllm.support.NobodyIsWoken"}
    return settings


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    yield
    end_host()


@pytest.fixture
def openai_wire() -> Iterator[WireClient]:
    with ServerProcess("openai_wire") as server:
        yield WireClient(server.url)
