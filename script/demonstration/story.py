from __future__ import annotations

from collections.abc import Callable

from agentruns.api import enqueue
from agentruns.enums import TERMINAL, RunStatus, StepState
from agentruns.models import AgentRun
from tests.servers.waiting import wait_until

from .shop import ORDERS, task
from .world import World

AGENT = "support_desk"
PATIENCE_SECONDS = 120

Say = Callable[[str], None]


def tell(world: World, say: Say) -> list[AgentRun]:
    """Make three runs, kill two workers, reap; return the runs as they end."""
    say("Run 1 is left alone ...")
    undisturbed = start(1001)
    settle(undisturbed)
    say("Run 2: its worker is killed (SIGKILL) inside the e-mail ...")
    interrupted = kill_inside_the_email(world)
    say("Run 3: its worker is killed (SIGKILL) after the e-mail, between two steps ...")
    repeatable = kill_between_steps(world)
    say("Waiting until the leases of the killed workers have run out, then reaping ...")
    wait_until(lambda: AgentRun.objects.stale().count() == 2, PATIENCE_SECONDS, "stale leases")
    say(f"  manage.py reap_stale_agent_runs: {counted(world.reap())}")
    say("Letting later sweeps wake the requeued run when it is due ...")
    settle(repeatable, lambda: wake(world, say))
    return [reread(run) for run in (undisturbed, interrupted, repeatable)]


def start(number: int) -> AgentRun:
    accepted = enqueue(AGENT, task(ORDERS[number]), requested_by="demonstration")
    run: AgentRun = AgentRun.objects.get(uuid=accepted.uuid)
    return run


def reread(run: AgentRun) -> AgentRun:
    row: AgentRun = AgentRun.objects.get(pk=run.pk)
    return row


def settle(run: AgentRun, meanwhile: Callable[[], None] = lambda: None) -> None:
    def settled() -> bool:
        meanwhile()
        return reread(run).status in TERMINAL

    wait_until(settled, PATIENCE_SECONDS, lambda: as_it_is(run))


def wake(world: World, say: Say) -> None:
    """Sweep if there is a run that is due and that no worker has taken, as a schedule would."""
    if AgentRun.objects.unwoken().exists():
        say(f"  manage.py reap_stale_agent_runs: {counted(world.reap())}")


def kill_inside_the_email(world: World) -> AgentRun:
    """Kill the worker after the mail server has kept the message, before the worker knows."""
    run = start(1002)
    world.mail.wait_held(timeout=PATIENCE_SECONDS)
    world.cluster.kill_worker(worker_of(run))
    return run


def kill_between_steps(world: World) -> AgentRun:
    """Kill the worker when its e-mail is recorded and the model has not answered yet."""
    run = start(1003)
    sent = run.steps.filter(name="send_email", state=StepState.RECORDED)
    wait_until(sent.exists, PATIENCE_SECONDS, lambda: as_it_is(run))
    if world.endpoint is not None:
        # It withholds this one answer. Who is killed before asking for it would leave the pause
        # to the worker that takes over.
        world.endpoint.wait_held(timeout=PATIENCE_SECONDS)
    world.cluster.kill_worker(worker_of(run))
    return run


def worker_of(run: AgentRun) -> int:
    """Return the process that executes the run: its owner is `kind:host:pid:random`."""
    owner = reread(run)
    if owner.status != RunStatus.RUNNING:
        raise AssertionError(f"nobody executes it: {as_it_is(run)}")
    return int(owner.claimed_by.rsplit(":", 2)[1])


def counted(report: dict[str, object]) -> str:
    kinds = ("dead_lettered", "requeued", "woken")
    return ", ".join(f"{report[kind]} {kind.replace('_', '-')}" for kind in kinds)


def as_it_is(run: AgentRun) -> str:
    row = reread(run)
    return f"run {row.uuid}: {row.status} {row.termination_reason} {row.error_message}"
