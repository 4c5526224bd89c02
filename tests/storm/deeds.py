"""What happens in a storm: to the processes, and by people."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from django_q.models import OrmQ

from agentruns import api
from agentruns.enums import WAITING, Resolution, RunStatus
from agentruns.exceptions import AgentRunError
from agentruns.models import AgentRun, Step
from tests.harness.database import end_other_connections

from .world import World, persistently

STUCK_SECONDS = 30
# So many there are also where the machine is too slow for them.
LEAST_DEEDS = 20
# No more than this waits at a time: the storm is to strike work, not a queue.
MOST_WAITING = 40

STEPS = [
    "read_only",
    "idempotent_write",
    "non_idempotent_write",
    "non_idempotent_write",
    "transactional_write",
]


@dataclass
class Storm:
    """Chooses by the seed alone what to do next; what is there to do it to is up to the moment."""

    world: World
    random: Random
    accepted: dict[int, UUID] = field(default_factory=dict)
    # How often each was chosen, and how much it really did: processes hit, runs moved, messages lost.
    done: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)

    def rage(self, seconds: float) -> None:
        names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or self.done.total() < LEAST_DEEDS:
            # One stream for what is done, one for each deed: so the choices are the seed's alone.
            name, pause = self.random.choice(names), self.random.uniform(0, 0.4)
            self.did[name] += DEEDS[name](self, Random(self.random.getrandbits(32)))
            self.done[name] += 1
            self.world.wake_up(time.monotonic())
            self.world.keep_up()
            time.sleep(pause)

    def calm_down(self, patience: float) -> None:
        """Let workers and reapers bring everything to an end, while they get on with it.

        Clusters that have got stuck are started anew; what does not move for so long is lost.
        """
        self.world.wake_up()
        left, moved, renewed = self.unfinished(), time.monotonic(), 0.0
        while left and time.monotonic() - moved < patience:
            now, former = time.monotonic(), left
            if now - max(moved, renewed) > STUCK_SECONDS:
                for cluster in list(self.world.clusters):
                    self.world.lose(cluster)
                renewed = now
            self.world.keep_up()
            time.sleep(0.5)
            left = self.unfinished()
            moved = time.monotonic() if left < former else moved

    def unfinished(self) -> int:
        live = [RunStatus.QUEUED, RunStatus.RUNNING]
        count: int = persistently(AgentRun.objects.filter(status__in=live).count)
        return count

    def one_of(self, random: Random, **lookup: Any) -> AgentRun | None:
        runs = persistently(lambda: list(AgentRun.objects.filter(**lookup).order_by("pk")))
        return random.choice(runs) if runs else None


def accept(storm: Storm, random: Random) -> int:
    if storm.unfinished() >= MOST_WAITING:
        return 0
    runs = random.randint(1, 4)
    for _ in range(runs):
        steps = [[random.choice(STEPS), random.uniform(0, 1)] for _ in range(random.randint(1, 4))]
        if random.random() < 0.15:
            steps.append(["ask", 0])
        number = len(storm.accepted)
        key = f"storm-{number}"

        def enqueue(steps: Any = steps, key: str = key) -> UUID:
            return api.enqueue("plan", steps, idempotency_key=key).uuid

        storm.accepted[number] = persistently(enqueue)
    return runs


def operate(verb: Callable[[], object]) -> bool:
    """What a person does; that the state has moved on is no failure. Returns whether it was done."""
    try:
        persistently(verb)
    except AgentRunError:
        return False
    return True


def cancel(storm: Storm, random: Random) -> int:
    run = storm.one_of(random)
    return run is not None and operate(lambda: api.cancel(run.uuid, by="operator"))


def answer(storm: Storm, random: Random) -> int:
    run = storm.one_of(random, status__in=WAITING)
    if run is None:
        return 0
    question = persistently(lambda: run.journal().open_questions().first())
    return question is not None and operate(
        lambda: api.submit_input(run.uuid, question.key, 7, by="operator")
    )


def resolve(storm: Storm, random: Random) -> int:
    """Say what the recorder has seen of the write in doubt: nobody else knows."""
    run = storm.one_of(random, status=RunStatus.FAILED, termination_reason="interrupted_write")
    if run is None:
        return 0
    digest = persistently(run.resolution_digest)
    _effect, pk = persistently(run.standing_fence)
    attempt = persistently(lambda: Step.objects.filter(pk=pk).first())
    if attempt is None:
        return 0
    facts = {"run": str(run.uuid), "step": attempt.key, "epoch": attempt.epoch}
    seen = len(storm.world.recorder.bodies(**facts))
    started = seen > 0
    verdict = Resolution.HAPPENED if started else Resolution.DID_NOT_HAPPEN
    said: dict[str, Any] = {
        "by": "operator",
        "reason": f"the recorder saw {seen}",
        "digest": digest,
    }
    if started:
        said["result"] = "it happened"
    return operate(lambda: api.resolve(run.uuid, verdict, **said))


def retry(storm: Storm, random: Random) -> int:
    run = storm.one_of(random, status=RunStatus.FAILED, pending_effect="")
    return run is not None and operate(lambda: api.retry(run.uuid, by="operator", reason="again"))


def kill_worker(storm: Storm, random: Random) -> int:
    return storm.world.strike_worker(random, signal.SIGKILL)


def terminate_worker(storm: Storm, random: Random) -> int:
    return storm.world.strike_worker(random, signal.SIGTERM)


def pause_worker(storm: Storm, random: Random) -> int:
    return storm.world.pause_worker(random)


def kill_cluster(storm: Storm, random: Random) -> int:
    if not storm.world.clusters:
        return 0
    storm.world.lose(random.choice(storm.world.clusters))
    return 1


def kill_reaper(storm: Storm, random: Random) -> int:
    random.choice(storm.world.reapers).process.kill()
    return 1


def cut_connections(storm: Storm, random: Random) -> int:
    return persistently(end_other_connections)


def crash_postgres(storm: Storm, random: Random) -> int:
    storm.world.server.crash()
    return 1


def empty_broker(storm: Storm, random: Random) -> int:
    lost: int = persistently(lambda: OrmQ.objects.all().delete()[0])
    return lost


DEEDS: dict[str, Callable[[Storm, Random], int]] = {
    deed.__name__: deed
    for deed in (
        accept, answer, resolve, retry, cancel,
        kill_worker, terminate_worker, pause_worker, kill_cluster, kill_reaper,
        cut_connections, crash_postgres, empty_broker,
    )
}  # fmt: skip
WEIGHTS = {
    "accept": 16,
    "answer": 3,
    "resolve": 4,
    "retry": 1,
    "cancel": 2,
    "kill_worker": 8,
    "terminate_worker": 2,
    "pause_worker": 3,
    "kill_cluster": 1,
    "kill_reaper": 1,
    "cut_connections": 2,
    "crash_postgres": 1,
    "empty_broker": 2,
}
