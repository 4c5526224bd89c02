"""docs/capacity.md: its statements are executed, its settings are those of the migrations."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.markdown import Page
from tests.servers.process import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

PAGE = Page(ROOT / "docs/capacity.md")


def storage() -> set[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, unnest(reloptions) FROM pg_class WHERE relname LIKE 'agentruns_%'"
        )
        return set(cursor.fetchall())


def test_the_storage_that_it_names_is_what_the_migrations_set() -> None:
    rows = [[cell.strip("`") for cell in row] for row in PAGE.rows() if len(row) == 4]
    named = {(row[0], f"{row[1]}={row[2]}") for row in rows if row[0].startswith("agentruns_")}
    assert named == storage()


def test_its_statements_are_executed() -> None:
    blocks = list(PAGE.blocks("sql"))
    assert len(blocks) == 2
    with connection.cursor() as cursor:
        for block in blocks:
            cursor.execute(block.content)
    assert ("agentruns_agentrun", "autovacuum_vacuum_cost_limit=2000") in storage()
