"""DBOS Transact beside it, where it is installed (`pip install dbos`): the same steps in a workflow."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

from .measure import Contenders

DATABASE = "agentruns_benchmark_dbos"


def dbos_steps(result: Any) -> Contenders:
    """One workflow of so many steps, each of which returns at once; none where DBOS is missing.

    A step there has no fence: it is recorded when it has ended, a write like a read.
    """
    if importlib.util.find_spec("dbos") is None:
        return {}
    from dbos import DBOS

    url = os.environ["DATABASE_URL"].rpartition("/")[0] + f"/{DATABASE}"
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR"})

    @DBOS.step()  # type: ignore[untyped-decorator]
    def step(number: int) -> Any:
        return result

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    def workflow(operations: int) -> None:
        for number in range(operations):
            step(number)

    DBOS.launch()

    def prepare(operations: int) -> Callable[[], object]:
        return lambda: workflow(operations)

    return {"DBOS step": prepare}
