from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from benchmarks.admin_plans import judged, measure
from benchmarks.plans import explain

pytestmark = pytest.mark.postgres
SIZES = [2_000, 20_000]


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """What fills the tables leaves them empty, with the storage that they had."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE agentruns_event, agentruns_step, agentruns_agentrun")
        cursor.execute("ALTER TABLE agentruns_agentrun ALTER request SET STORAGE EXTENDED")
        cursor.execute("ALTER TABLE agentruns_step ALTER arguments SET STORAGE EXTENDED")
        cursor.execute("ANALYZE agentruns_agentrun, agentruns_step, agentruns_event")


def test_no_page_reads_more_because_the_table_is_bigger(emptied: None) -> None:
    found = measure(SIZES)
    assert len(found) > 60
    assert not judged(found, big=SIZES[-1])


def test_a_scan_of_the_table_is_noticed(emptied: None) -> None:
    found = measure(SIZES[:1])
    ((visit, bound),) = found["desk"].values()
    visit.explained.append(explain('SELECT count("error_message") FROM "agentruns_agentrun"'))
    assert visit.scanned == ["agentruns_agentrun"]
    said = judged(found, big=SIZES[0])
    assert f"desk: {visit.rows_read} rows read of 2000, more than {bound}" in said
    assert "desk: scans agentruns_agentrun with 2000 runs" in said
