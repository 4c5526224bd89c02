from __future__ import annotations

from typing import Any


class AgentRunError(Exception):
    """Base of every error that a caller of the public API may catch."""


class UnknownAgent(AgentRunError):
    """No agent of this name is registered in this process."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"no agent is registered as {self.name!r} (registered: {known}); "
            "register it in an installed app's agents.py"
        )


class NoSuchAgent(UnknownAgent):
    """Neither a registered agent nor a run has this name."""

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"no run is of an agent {self.name!r}, and none is registered so (registered: {known})"
        )


class RunNotFound(AgentRunError):
    """No run has this uuid."""


class PayloadError(AgentRunError, ValueError):
    """A value can't be kept as JSON: its type, depth or size; nothing was written."""


class ResultRefused(PayloadError):
    """A step can't have returned this, by what its agent knows of it; nothing was written."""


class PayloadUnreadable(AgentRunError):
    """A stored payload can't be decoded: it was damaged, or a newer version wrote it."""


class IdempotencyConflict(AgentRunError):
    """The idempotency key is taken by a run with another request."""


class TransitionRefused(AgentRunError):
    """The run is not in a state that this transition starts from; nothing changed."""


class GuardedColumns(AgentRunError):
    """`save()`, `update()` or `bulk_update()` was asked to write a column that only a transition may."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__(columns)
        self.columns = columns

    def __str__(self) -> str:
        return (
            f"{', '.join(self.columns)}: only the transitions of AgentRun write these columns "
            "(claim, renew, mark_pending_effect, record_step, settle, requeue, dead_letter, ...)"
        )


class InsideTransaction(AgentRunError):
    """A run or a write was started inside `atomic()`, where its fence would be invisible to others."""


class NoFreeSlot(AgentRunError):
    """A synchronous run was refused: its agent has as many runs as it may have at a time."""

    def __init__(self, agent: str, most: int) -> None:
        super().__init__(agent, most)

    def __str__(self) -> str:
        agent, most = self.args
        return (
            f"agent {agent!r} has {most} of {most} runs at a time: try again later, or enqueue() the "
            "run, which then waits for a free slot"
        )


class SlotsHeld(AgentRunError):
    """Another claim of a limited agent holds its slots for long: its worker may have been paused."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)

    def __str__(self) -> str:
        return f"another claim of agent {self.args[0]!r} has not ended"


class JournalMismatch(AgentRunError):
    """The journal does not fit the code that replays it; the message names the step."""


class EffectNotApplied(AgentRunError):
    """Raise in a write's body: nothing happened, for certain.

    `answer` (JSON) is recorded and the fence is cleared. A replay raises this again with the same
    answer; the body is not executed again.
    """

    def __init__(self, answer: Any = None) -> None:
        super().__init__(answer)
        self.answer = answer


class ApprovalDenied(AgentRunError):
    """A person denied the approval that this call needs; its body was not executed."""

    def __init__(self, note: str = "") -> None:
        super().__init__(note)
        self.note = note


class ApprovalVoid(AgentRunError):
    """An approval does not hold any more; the call is put before a person again."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(key, why)
        self.key = key
        self.why = why

    def __str__(self) -> str:
        return f"the approval {self.key!r} does not hold any more: {self.why}"


class EffectLanded(AgentRunError):
    """Raise in a write's body: the effect happened, but there is no result that can be kept.

    The step is recorded as landed with a stand-in, the fence is cleared and the run fails.
    """


class LandedWithoutResult(AgentRunError):
    """A write landed, but its result could not be encoded or stored; it will not be repeated."""


class RunFailed(AgentRunError):
    """A synchronous run ended FAILED with certainty about its writes. `reason` says why."""

    def __init__(self, uuid: Any, reason: str, message: str = "") -> None:
        super().__init__(uuid, reason, message)
        self.uuid = uuid
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"run {self.uuid} failed ({self.reason}): {self.message}"


class RunCancelled(AgentRunError):
    """A synchronous run was cancelled."""


class RunUncertain(RunFailed):
    """A run stopped inside a non-idempotent write: nobody knows yet whether it happened."""


class RunLost(AgentRunError):
    """This process lost the run's lease while executing it; another one decides what becomes of it."""


class SegmentInterrupt(BaseException):
    """Ends a segment. Not an `Exception`, so that no handler turns it into a result."""


class LeaseLost(SegmentInterrupt):
    """The guard said no: the run is not RUNNING under this owner and epoch."""


class UncertainWrite(SegmentInterrupt):
    """A non-idempotent write's body ended without saying what happened; its fence stands."""


class WriteFailed(SegmentInterrupt):
    """An idempotent write's body failed; the verdict decides whether it is repeated."""


class CancelRequested(SegmentInterrupt):
    """Somebody asked to cancel the run; the segment stops before its next effect."""


class Parked(SegmentInterrupt):
    """The run waits for a person; a later claim goes on from here."""


class GivenBack(SegmentInterrupt):
    """The process is to stop; the run goes back to the queue and spends no retry."""
