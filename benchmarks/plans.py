"""What a query reads, by the plan that PostgreSQL executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext

OURS = "agentruns_"


@dataclass
class Query:
    """One SELECT, executed again under EXPLAIN."""

    sql: str
    rows_read: int = 0
    buffers: int = 0
    scanned: list[str] = field(default_factory=list)


@dataclass
class Visit:
    """One page or command: how many queries it sent, and what those of our tables read."""

    name: str
    queries: int
    explained: list[Query]

    @property
    def rows_read(self) -> int:
        return sum(query.rows_read for query in self.explained)

    @property
    def buffers(self) -> int:
        return sum(query.buffers for query in self.explained)

    @property
    def scanned(self) -> list[str]:
        return sorted({table for query in self.explained for table in query.scanned})


def visit(name: str, look: Callable[[], object]) -> Visit:
    """Look at a page, and read the plans of the queries that it sent."""
    with CaptureQueriesContext(connection) as captured:
        look()
    sent = [query["sql"] for query in captured]
    ours = [sql for sql in sent if sql.startswith("SELECT") and f'"{OURS}' in sql]
    return Visit(name, len(sent), [explain(sql) for sql in ours])


def explain(sql: str) -> Query:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    query = Query(sql, buffers=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    for node in nodes(plan):
        if "Relation Name" in node or node["Node Type"] == "Bitmap Index Scan":
            query.rows_read += rows_of(node)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith(OURS):
            query.scanned.append(node["Relation Name"])
    return query


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def rows_of(node: dict[str, Any]) -> int:
    """The rows that a scan read, also those that it threw away."""
    thrown_away = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    each_time: float = node["Actual Rows"] + sum(node.get(name, 0) for name in thrown_away)
    loops: int = node["Actual Loops"]
    return round(each_time * loops)
