"""Workers of an earlier version while the tables change, and beside workers of today's."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from agentruns import api
from agentruns.enums import Resolution
from agentruns.models import AgentRun
from agentruns.testing.client import RecorderClient
from tests.crash.support import COMPLETED, bodies, interrupted_step, outcome
from tests.harness.fixtures import StartQCluster
from tests.harness.manage import run_manage
from tests.harness.runs import describe, drain, end_lease, enqueued, reread, wait_settled

from .earlier import Earlier, code_of, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

# Before these, migrations were still edited: today's tables are not made from theirs.
LATER = [state for state in states()[:-1] if state >= "0006"]
AGENTS = ("one_write", "two_writes", "repeatable_write", "transactional_write", "async_write")


of_the_oldest = pytest.mark.parametrize("earlier", LATER[:1], indirect=True)


@pytest.fixture(params=LATER)
def earlier(request: pytest.FixtureRequest, own_database: None, tmp_path: Path) -> Earlier:
    """An earlier version's code, and a database with its tables."""
    code = code_of(request.param, tmp_path / "earlier")
    code.manage("migrate")
    return code


def rows(uuids: list[UUID]) -> list[AgentRun]:
    """These runs, in today's tables."""
    return [AgentRun.objects.get(uuid=uuid) for uuid in uuids]


def test_they_go_on_while_the_tables_change_and_after(
    earlier: Earlier, recorder: RecorderClient, recorder_url: str, tmp_path: Path
) -> None:
    with earlier.cluster(tmp_path / "old", workers=2, recorder_url=recorder_url):
        recorder.arm("in_body:write")
        recorder.arm("in_body:second")
        uuids = earlier.enqueue("one_write", "two_writes")
        recorder.wait_reached("in_body:write")
        recorder.wait_reached("in_body:second")
        run_manage("migrate").check()
        recorder.release("in_body:write")
        recorder.release("in_body:second")
        runs = rows(uuids) + [enqueued(agent, {}) for agent in AGENTS]
        for run in runs:
            wait_settled(run)
            assert outcome(run) == COMPLETED, describe(run)
            assert reread(run).requeue_count == 0
    for run in runs:
        for name in ("write", "first", "second"):
            assert bodies(run, name, recorder) <= 1
    assert recorder.count("write") == 5
    assert recorder.count("second") == 2


@of_the_oldest
def test_today_s_go_on_from_their_journals_where_they_died(
    earlier: Earlier,
    recorder: RecorderClient,
    recorder_url: str,
    start_qcluster: StartQCluster,
    tmp_path: Path,
) -> None:
    with earlier.cluster(tmp_path / "old", workers=3, recorder_url=recorder_url) as old:
        recorder.arm("in_body:read_after", times=2)
        recorder.arm("in_body:second")
        uuids = earlier.enqueue("one_write", "repeatable_write", "two_writes")
        recorder.wait_reached("in_body:read_after", arrival=2)
        recorder.wait_reached("in_body:second")
        old.kill()
    recorder.release("in_body:read_after")
    recorder.release("in_body:second")
    run_manage("migrate").check()
    *written, interrupted = rows(uuids)
    start_qcluster()
    for run in written:
        end_lease(run)
        drain(run)
        assert outcome(run) == COMPLETED, describe(run)
        assert [bodies(run, name, recorder) for name in ("read_before", "write")] == [1, 1]
        assert bodies(run, "read_after", recorder) == 2
    end_lease(interrupted)
    drain(interrupted)
    interrupted_step(interrupted)
    api.resolve(
        interrupted.uuid,
        Resolution.HAPPENED,
        by="ada",
        reason="the recorder has it",
        digest=reread(interrupted).resolution_digest(),
        result={"done": "second"},
    )
    wait_settled(interrupted)
    assert outcome(interrupted) == COMPLETED, describe(interrupted)
    assert [bodies(interrupted, name, recorder) for name in ("first", "second")] == [1, 1]


@of_the_oldest
def test_they_go_on_from_today_s_journals(
    earlier: Earlier,
    recorder: RecorderClient,
    recorder_url: str,
    tmp_path: Path,
    start_qcluster: StartQCluster,
) -> None:
    """As when a deploy is taken back: the code, never the tables."""
    run_manage("migrate").check()
    new = start_qcluster()
    recorder.arm("in_body:read_after")
    run = enqueued("one_write", {})
    new.kill_worker(recorder.wait_reached("in_body:read_after"))
    new.kill()
    end_lease(run)
    recorder.release("in_body:read_after")
    with (
        earlier.cluster(tmp_path / "old", recorder_url=recorder_url),
        earlier.reaper(recorder_url=recorder_url),
    ):
        wait_settled(run)
    assert outcome(run) == COMPLETED, describe(run)
    assert [bodies(run, name, recorder) for name in ("read_before", "write")] == [1, 1]
