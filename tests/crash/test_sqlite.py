from __future__ import annotations

import pytest

from agentruns.testing.client import RecorderClient
from tests.harness.qcluster import QCluster
from tests.harness.runs import describe, drain
from tests.project.models import LedgerEntry

from .support import COMPLETED, kill_held, outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


def test_a_transactional_write_killed_inside_its_transaction_happens_once(
    qcluster: QCluster, recorder: RecorderClient
) -> None:
    """The whole database is locked for writers meanwhile, the heartbeat among them."""
    run = kill_held("transactional_write", "in_body:write", qcluster, recorder)
    assert not LedgerEntry.objects.exists()
    drain(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert LedgerEntry.objects.count() == 1
    assert recorder.count("write") == 2
