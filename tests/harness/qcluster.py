from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.project.apps import WORKER_PIDS
from tests.servers.cluster import ClusterProcess, is_alive
from tests.servers.process import ROOT

from .environment import subprocess_environment


class QCluster(ClusterProcess):
    """A real cluster on this test's database.

    `agentruns` and `q_cluster` are merged over the settings, `clock_offset` moves its clock by so
    many seconds, and the recorder at `recorder_url` may hold its workers at crash points. Its code is
    that in `root`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 1,
        recorder_url: str = "",
        agentruns: dict[str, Any] | None = None,
        q_cluster: dict[str, Any] | None = None,
        clock_offset: float = 0,
        root: Path = ROOT,
        **environment: str,
    ) -> None:
        self.wanted = workers
        self.pids = directory / "workers"
        self.pids.touch()
        super().__init__(
            directory / "qcluster.log",
            subprocess_environment(
                recorder_url=recorder_url,
                agentruns=agentruns,
                q_cluster={"workers": workers, **(q_cluster or {})},
                clock_offset=clock_offset,
                root=root,
                **{WORKER_PIDS: str(self.pids), **environment},
            ),
            root,
        )

    def is_up(self) -> bool:
        self.check()
        return len(self.workers()) >= self.wanted

    def workers(self) -> list[int]:
        """Return the process ids of the workers that live, the oldest first."""
        return [int(pid) for pid in self.pids.read_text().split() if is_alive(int(pid))]

    def owns(self, pid: int) -> bool:
        return pid in self.workers()
