"""Show by query plans that no page of the admin reads more because the table is bigger.

It needs PostgreSQL: in the server that DATABASE_URL names, it makes a database of its own, and drops
it in the end. Exit code 1: a page sends more queries with more rows, reads more rows than it says, or
scans a big table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django

DEFAULT_ROWS = [10_000, 1_000_000]
Measured = dict[str, dict[int, Any]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admin_plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, nargs="+", default=DEFAULT_ROWS, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


@contextmanager
def database() -> Iterator[None]:
    """A new database beside the configured one, for the time of the block."""
    from django.core.management import call_command
    from django.db import connection

    if connection.vendor != "postgresql":
        sys.exit("DATABASE_URL names no PostgreSQL server.")
    name = f"{connection.settings_dict['NAME']}_admin_plans"
    quoted = connection.ops.quote_name(name)
    former = connection.settings_dict["NAME"]
    drop = f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)"
    with connection._nodb_cursor() as cursor:
        cursor.execute(drop)
        cursor.execute(f"CREATE DATABASE {quoted}")
    try:
        connection.close()
        connection.settings_dict["NAME"] = name
        call_command("migrate", verbosity=0, interactive=False)
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = former
        with connection._nodb_cursor() as cursor:
            cursor.execute(drop)


def measure(sizes: list[int]) -> Measured:
    """Each page's visit at each size, by the name of the page; the last size is the biggest."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    from .admin_pages import pages
    from .filling import AGENTS, fill
    from .plans import visit

    client = Client(headers={"host": "localhost"})
    client.force_login(get_user_model().objects.create_superuser("ada", password="secret"))
    register(AGENTS)
    found: Measured = {}
    for size in sizes:
        began = time.monotonic()
        fill(size)
        say(f"filled {size} runs in {time.monotonic() - began:.0f} s")
        for page in pages(client):
            name = named(page.name)
            found.setdefault(name, {})[size] = (visit(page.name, page.look), page.bound)
    return found


def register(names: tuple[str, ...]) -> None:
    """Have the admin's filter offer these agents."""
    from agentruns import registry

    for name in names:
        if name not in registry.names():
            registry.add(registry.RegisteredAgent(name, print))


def named(name: str) -> str:
    """The same name at each size, where it holds the uuid or the id of a run."""
    uuid_search = "list q=" in name and name.count("-") == 4
    return "list q=uuid" if uuid_search else name.split("order+", maxsplit=1)[0]


def judged(found: Measured, big: int = 0) -> list[str]:
    """What is wrong. Tables of fewer than `big` runs may be scanned: that costs nothing."""
    wrong = []
    for name, visits in found.items():
        if len({visit.queries for visit, _bound in visits.values()}) > 1:
            wrong.append(f"{name}: the number of queries grows")
        for size, (visit, bound) in visits.items():
            if visit.rows_read > bound:
                wrong.append(f"{name}: {visit.rows_read} rows read of {size}, more than {bound}")
            if size >= big:
                wrong += [f"{name}: scans {table} with {size} runs" for table in visit.scanned]
    return wrong


def report(found: Measured) -> dict[str, Any]:
    return {
        name: {
            str(size): {
                "queries": visit.queries,
                "rows_read": visit.rows_read,
                "buffers": visit.buffers,
                "bound": bound,
            }
            for size, (visit, bound) in visits.items()
        }
        for name, visits in found.items()
    }


def as_text(found: Measured) -> str:
    sizes = list(next(iter(found.values())))
    head = "".join(f"{f'{size:,} runs':>30}" for size in sizes)
    lines = [
        f"{'':44}{head}",
        f"{'page':44}" + f"{'queries':>10}{'rows':>10}{'buffers':>10}" * len(sizes),
    ]
    for name, visits in found.items():
        cells = [f"{v.queries:10}{v.rows_read:10}{v.buffers:10}" for v, _bound in visits.values()]
        lines.append(f"{name:44}" + "".join(cells))
    return "\n".join(lines)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    options = parse()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.test")
    django.setup()
    sizes = sorted(set(options.rows))
    with database():
        found = measure(sizes)
    wrong = judged(found, big=max(sizes))
    if options.json:
        print(json.dumps({"pages": report(found), "wrong": wrong}, indent=2))
    else:
        print(as_text(found), *wrong, "Nothing grows." if not wrong else "", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
