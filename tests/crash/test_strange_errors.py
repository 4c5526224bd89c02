"""A worker outlives whatever its agents raise, and settles what it should."""

from __future__ import annotations

import pytest

from agentruns.enums import RunStatus, TerminationReason, ToolEffect
from agentruns.testing.client import RecorderClient
from tests.harness.qcluster import QCluster
from tests.harness.runs import deliver_again, reread, wait_settled
from tests.project.strange_errors import STRANGE

from .support import COMPLETED, begin, bodies, interrupted_step, outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.server]

# As long as no worker would be ended by anything but what was raised.
MANY = 60


@pytest.mark.parametrize("agent", ["raises", "raises_on_a_loop"])
@pytest.mark.parametrize("effect", ["", ToolEffect.READ_ONLY, ToolEffect.NON_IDEMPOTENT_WRITE])
def test_a_worker_outlives_every_strange_error_and_repeats_no_write(
    qcluster: QCluster, recorder: RecorderClient, agent: str, effect: str
) -> None:
    workers = qcluster.workers()
    runs = [begin(agent, [which, effect]) for which in STRANGE]
    for run in runs:
        wait_settled(run, timeout=MANY)
        if effect == ToolEffect.NON_IDEMPOTENT_WRITE:
            interrupted_step(run)
        else:
            assert outcome(run) == (RunStatus.FAILED, TerminationReason.NOT_RETRYABLE)
        assert reread(run).error_message
    deliver_again(runs[-1])
    assert [bodies(run, "step", recorder) for run in runs] == [int(bool(effect))] * len(runs)
    after = begin("echo", "still there")
    wait_settled(after)
    assert outcome(after) == COMPLETED
    assert qcluster.workers() == workers
