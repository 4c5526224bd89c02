"""Real workers with keys: killed inside a write, and followed by workers with a newer key."""

from __future__ import annotations

from typing import Any

import pytest

from agentruns import api
from agentruns.enums import Resolution
from agentruns.testing.client import RecorderClient
from tests.agentruns.test_encryption import NEW, OLD, SECRET, keys, stored
from tests.harness.fixtures import StartQCluster
from tests.harness.runs import describe, drain, end_lease, reread, wait_settled

from .support import COMPLETED, interrupted_step, outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]


def with_keys(*given: str) -> dict[str, Any]:
    return {"agentruns": {"ENCRYPTION_KEYS": list(given)}}


def test_a_run_goes_on_under_another_key_from_a_write_that_died_under_the_first(
    start_qcluster: StartQCluster, recorder: RecorderClient
) -> None:
    cluster = start_qcluster(**with_keys(OLD))
    recorder.arm("in_body:write")
    with keys(OLD):
        run = api.enqueue("one_write", {"secret": SECRET})
        row = api._find(run.uuid)
        cluster.kill_worker(recorder.wait_reached("in_body:write"))
        end_lease(row)
        recorder.release("in_body:write")
        drain(row, **with_keys(OLD))
        interrupted_step(row)
    cluster.kill()
    start_qcluster(**with_keys(NEW, OLD))
    with keys(NEW, OLD):
        api.resolve(
            run.uuid,
            Resolution.HAPPENED,
            by="ada",
            reason="the recorder has it",
            digest=reread(row).resolution_digest(),
            result={"done": SECRET},
        )
        wait_settled(row)
        assert outcome(row) == COMPLETED, describe(row)
        assert api.status(run.uuid).output == {"written": {"done": SECRET}}
    assert recorder.count("write") == 1
    texts = stored()
    assert len(texts) > 5
    assert all(text.startswith("2:") for text in texts.values())
