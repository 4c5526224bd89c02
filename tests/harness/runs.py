from __future__ import annotations

from typing import Any

from django.db.models.functions import Now
from django_q.models import Task
from django_q.tasks import async_task

from agentruns.api import enqueue
from agentruns.enums import TERMINAL, WAITING, RunStatus
from agentruns.models import AgentRun, Event
from agentruns.testing.settling import LeaseClock
from tests.servers.waiting import PATIENCE, wait_until

from .manage import ManageResult, run_manage
from .processes import Reaper

SETTLED = TERMINAL | WAITING


def enqueued(agent: str, request: Any = None, **options: Any) -> AgentRun:
    """Enqueue a run and return its row."""
    row: AgentRun = AgentRun.objects.get(uuid=enqueue(agent, request, **options).uuid)
    return row


def reread(run: AgentRun) -> AgentRun:
    row: AgentRun = AgentRun.objects.get(pk=run.pk)
    return row


def history(run: AgentRun) -> list[str]:
    """Return the kinds of the run's events, in their order."""
    return list(Event.objects.filter(run=run).order_by("pk").values_list("kind", flat=True))


def describe(run: AgentRun) -> str:
    row = reread(run)
    return (
        f"run {row.uuid} of {row.agent}: {row.status} {row.termination_reason} "
        f"{row.error_class} {row.error_message!r}, fence {row.pending_effect!r}, "
        f"requeued {row.requeue_count}, history {history(run)}"
    )


def wait_for_status(run: AgentRun, *statuses: RunStatus, timeout: float = PATIENCE) -> AgentRun:
    """Wait until the run has one of these statuses; touch nothing; return it as it is then."""

    def there() -> AgentRun | None:
        row = reread(run)
        return row if row.status in statuses else None

    row = wait_until(there, timeout, lambda: f"{list(statuses)}: {describe(run)}")
    assert row is not None
    return row


def wait_settled(run: AgentRun, timeout: float = PATIENCE) -> AgentRun:
    return wait_for_status(run, *SETTLED, timeout=timeout)


def end_lease(run: AgentRun) -> None:
    """Let the lease of a worker that is dead have run out, so that nobody need wait for it."""
    LeaseClock(run.uuid).run_out()


def wait_out_lease(run: AgentRun, timeout: float = PATIENCE) -> None:
    """Wait until the lease has really run out, by the clock that judges it: the database's."""
    expired = AgentRun.objects.filter(pk=run.pk, lease_expires_at__lt=Now())
    wait_until(expired.exists, timeout, lambda: f"the end of the lease: {describe(run)}")


def reap(**options: Any) -> ManageResult:
    """Run one sweep, by the real command in a process of its own."""
    return run_manage("reap_stale_agent_runs", "--json", **options).check()


def drain(run: AgentRun, timeout: float = PATIENCE, **options: Any) -> AgentRun:
    """Let a real reaper sweep again and again until the run is settled; return it as it is then.

    The workers are those of the test's qcluster: a requeued run is woken by a sweep, as in life.
    """
    if reread(run).status in SETTLED:
        return reread(run)
    with Reaper(**options) as reaper:

        def settled() -> AgentRun | None:
            reaper.check()
            row = reread(run)
            return row if row.status in SETTLED else None

        row = wait_until(settled, timeout, lambda: f"a settled state: {describe(run)}")
    assert row is not None
    return row


def deliver_again(run: AgentRun, timeout: float = PATIENCE) -> None:
    """Send the run's wake-up once more, and wait until a worker has dealt with it."""
    task = async_task("agentruns.tasks.execute", str(run.uuid))
    handled = Task.objects.filter(id=task)
    wait_until(handled.exists, timeout, lambda: f"a worker for a duplicate of {describe(run)}")
