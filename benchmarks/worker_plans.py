"""What a worker and a reaper read, by the plans of the very statements that they send.

Fails where a plan scans a whole table, or reads more pages than a bounded number of index paths does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agentruns import hotpath, hotrun, setreaper
from agentruns.enums import ToolEffect
from agentruns.fields import Payload
from agentruns.guard import from_now
from agentruns.journal import Journal, read_result
from agentruns.models import AgentRun
from agentruns.reaper import sweep

from .plans import OURS, nodes, rows_of
from .steps import OWNER, RETURNED, calls, running

# A few levels of a few indexes, the heap and what an insert or update touches, for each run of a sweep: at
# any size.
MOST_PAGES = 1000
# Of a sweep that finds something, so many runs of each kind.
REAPED = 3


def plans() -> list[dict[str, Any]]:
    """The plans at the present size of the tables.

    Raises:
        SystemExit: one of them scans a whole table, or reads too much.
    """
    found = [look(name, act) for name, act in ACTS.items()]
    bad = [row for row in found if row["scanned"] or row["pages"] > MOST_PAGES]
    if bad:
        raise SystemExit(f"plans that grow with the table: {json.dumps(bad, indent=1)}")
    return found


def look(name: str, make: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    """Do this in a transaction that is rolled back, and again each statement under EXPLAIN."""
    act = make()
    # As in a test: the stamp is refused in any other outer transaction.
    outer: Any = transaction.atomic()
    outer._from_testcase = True
    with outer:
        savepoint = transaction.savepoint()
        with CaptureQueriesContext(connection) as captured:
            act()
        transaction.savepoint_rollback(savepoint)
        ours = [query["sql"] for query in captured if OURS in query["sql"]]
        plans = [explained(sql) for sql in ours if not sql.startswith("SAVEPOINT")]
        transaction.set_rollback(True)
    return {
        "plan": name,
        "pages": sum(plan["pages"] for plan in plans),
        "rows_read": sum(plan["rows_read"] for plan in plans),
        "scanned": sorted({table for plan in plans for table in plan["scanned"]}),
    }


def explained(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    parts = list(nodes(plan))
    return {
        "pages": plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
        "rows_read": sum(rows_of(part) for part in parts if "Relation Name" in part),
        "scanned": [
            part["Relation Name"]
            for part in parts
            if part["Node Type"] == "Seq Scan" and part["Relation Name"].startswith(OURS)
        ],
    }


def stamp() -> Callable[[], object]:
    run, claim = running()
    (call,) = calls(1, ToolEffect.NON_IDEMPOTENT_WRITE)
    return lambda: hotpath._stamp(run, claim, call)


def record_read() -> Callable[[], object]:
    run, claim = running()
    (call,) = calls(1, ToolEffect.READ_ONLY)
    return lambda: hotpath.record(run, claim, call, RETURNED)


def record_write() -> Callable[[], object]:
    run, claim = running()
    (call,) = calls(1, ToolEffect.NON_IDEMPOTENT_WRITE)
    step = hotpath.stamp(run, claim, call)
    return lambda: hotpath.record(run, claim, call, RETURNED, step)


def renew() -> Callable[[], object]:
    run, claim = running()
    return lambda: hotpath.renew(run, claim)


def claim() -> Callable[[], object]:
    run, _new = hotrun.enqueue("benchmark", Payload.of(None))
    return lambda: hotrun.claim(run.uuid, OWNER)


def settle() -> Callable[[], object]:
    run, held = running()
    return lambda: hotrun.complete(run, held, Payload.of("output"))


def reap_one() -> Callable[[], object]:
    run, _claim = running()
    AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=run.created_at)
    return lambda: setreaper.SetReaper().reap(run.pk - 1, 1)


def sweep_that_finds_nothing() -> Callable[[], object]:
    AgentRun.objects.running().write_guarded(lease_expires_at=from_now(3600))
    AgentRun.objects.queued().write_guarded(available_at=from_now(3600))
    return sweep


def sweep_that_reaps_and_wakes() -> Callable[[], object]:
    sweep_that_finds_nothing()
    for _ in range(REAPED):
        run, _claim = running()
        AgentRun.objects.filter(pk=run.pk).write_guarded(lease_expires_at=run.created_at)
        hotrun.enqueue("benchmark", Payload.of(None), woken=False)
    return sweep


def enqueue() -> Callable[[], object]:
    return lambda: hotrun.enqueue("benchmark", Payload.of(None))


def enqueue_with_a_key() -> Callable[[], object]:
    hotrun.enqueue("benchmark", Payload.of(None), idempotency_key="order 7")
    return lambda: hotrun.enqueue("benchmark", Payload.of(None), idempotency_key="order 7")


def replay() -> Callable[[], object]:
    run, held = running()
    (call,) = calls(1, ToolEffect.READ_ONLY)
    hotpath.record(run, held, call, RETURNED)

    def act() -> None:
        Journal(run).load()
        read_result(run, call.key)

    return act


ACTS: dict[str, Callable[[], Callable[[], object]]] = {
    "enqueue": enqueue,
    "enqueue with a key that is taken": enqueue_with_a_key,
    "claim": claim,
    "stamp": stamp,
    "record a read": record_read,
    "record a write": record_write,
    "renew": renew,
    "settle": settle,
    "reap one": reap_one,
    "a sweep that finds nothing": sweep_that_finds_nothing,
    "a sweep that reaps and wakes a few": sweep_that_reaps_and_wakes,
    "replay a step": replay,
}
