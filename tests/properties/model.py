"""What the rules say about one run, written a second time and on purpose: the smallest model of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentruns.conf import conf
from agentruns.enums import ToolEffect
from agentruns.guard import Claim

WRITE, REPEATABLE = ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.IDEMPOTENT_WRITE
IN_DOUBT = ("started", "uncertain")
ENDED = ("completed", "failed", "cancelled")


@dataclass
class Attempt:
    key: str
    effect: str
    epoch: int
    owner: str
    state: str = "started"
    late: bool = False
    landed_late: bool = False

    @property
    def in_doubt(self) -> bool:
        return self.effect == WRITE and self.state in IN_DOUBT


@dataclass
class Model:
    status: str = "queued"
    epoch: int = 0
    owner: str = ""
    due: bool = True
    lease_over: bool = False
    # The column, and the attempt that it names.
    fence: str = ""
    fenced: Attempt | None = None
    cancel_requested: bool = False
    requeues: int = 0
    reason: str = ""
    resolution: str = ""
    # Of each epoch that ended in a dead letter: whether its worker was then known to be gone.
    gone: dict[int, bool] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    question: str = ""
    history: list[str] = field(default_factory=lambda: ["queued"])
    # How often the body of a write has started, and how often somebody said that it did not happen.
    bodies: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)

    def owns(self, claim: Claim) -> bool:
        mine = (claim.owner, claim.epoch)
        return self.status == "running" and (self.owner, self.epoch) == mine

    def former_worker_may_act(self, attempt: Attempt) -> bool:
        """Whether the worker of any attempt at this write may still act in it."""
        return any(
            not self.gone.get(each.epoch, False)
            for each in self.of(attempt.key)
            if not each.landed_late
        )

    def of(self, key: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.key == key]

    def is_recorded(self, key: str) -> bool:
        return any(attempt.state == "recorded" for attempt in self.of(key))

    def landed_before(self, key: str) -> Attempt | None:
        landed = [attempt for attempt in self.of(key) if attempt.landed_late]
        return landed[-1] if landed else None

    def standing(self) -> tuple[str, Attempt | None]:
        """The fence: what the column says, or the journal, the second witness."""
        if self.fence == WRITE and self.fenced is not None:
            return WRITE, self.fenced
        doubts = [attempt for attempt in self.attempts if attempt.in_doubt]
        return (WRITE, doubts[-1]) if doubts else (self.fence, self.fenced)

    # Moves.

    def claim(self, owner: str) -> None:
        self.status, self.owner, self.lease_over = "running", owner, False
        self.epoch += 1
        self.history.append("claimed")

    def stamp(self, claim: Claim, key: str, effect: str) -> Attempt:
        attempt = Attempt(key, effect, claim.epoch, claim.owner)
        self.attempts.append(attempt)
        self.fence, self.fenced, self.lease_over = effect, attempt, False
        self.bodies[key] += 1
        return attempt

    def record(self, attempt: Attempt) -> None:
        attempt.state = "recorded"
        self.lease_over = False
        if self.fenced is attempt:
            self.clear_fence()

    def clear_fence(self) -> None:
        self.fence, self.fenced = "", None

    def leave(self, status: str, event: str, reason: str = "") -> None:
        self.status, self.owner, self.reason = status, "", reason
        self.history.append(event)

    def requeue(self, event: str, *, due: bool, requeues: int) -> None:
        self.leave("queued", event)
        self.due, self.requeues = due, requeues
        self.clear_fence()

    def cancel(self) -> None:
        self.leave("cancelled", "cancelled", "cancelled")
        self.cancel_requested = True
        self.clear_fence()

    def dead_letter(self, reason: str, worker_ended: bool = False) -> None:
        self.fence, self.fenced = self.standing()
        interrupted = self.fenced if reason == "interrupted_write" else None
        if interrupted is not None and interrupted.state == "started":
            interrupted.state = "uncertain"
        self.gone[self.epoch], self.resolution = worker_ended, ""
        self.leave("failed", "dead_lettered", reason)

    def stop(self, hopeless: bool = False, worker_ended: bool = False) -> None:
        """The verdict on a run that stopped."""
        if self.standing()[0] == WRITE:
            self.dead_letter("interrupted_write", worker_ended)
        elif self.cancel_requested:
            self.cancel()
        elif hopeless:
            self.dead_letter("not_retryable", worker_ended)
        elif self.requeues >= conf.MAX_REQUEUES:
            self.dead_letter("retries_exhausted", worker_ended)
        else:
            self.requeue("requeued", due=False, requeues=self.requeues + 1)
