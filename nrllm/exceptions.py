from __future__ import annotations

from agentruns.exceptions import AgentRunError


class AgentRefused(AgentRunError):
    """Something of this agent can't run behind the fence; the message says what to do instead."""


class PolicyDenied(AgentRunError):
    """Raise in a guardrail (a hook, a tool that reads): the run must not go on, and is not retried."""


class RequestRefused(AgentRunError):
    """The request of a run is neither a prompt nor `{"prompt": ...}`; nothing was executed."""


ADVICE = {
    "approval_required": (
        "A write is asked for before it starts: declare it with needs_approval=True, or let a tool that "
        "reads ask"
    ),
    "model_retry": (
        "If it raises ModelRetry only before it acts, declare it with retry_means_not_applied=True; or "
        "have it raise EffectNotApplied"
    ),
}


class UnclearOutcome(AgentRunError):
    """A write's body ended in a way that does not say whether the effect happened."""

    def __init__(self, tool: str, kind: str, message: str = "") -> None:
        super().__init__(tool, kind, message)
        self.tool = tool
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        advice = f". {ADVICE[self.kind]}" if self.kind in ADVICE else ""
        return (
            f"the write {self.tool!r} ended with {self.kind!r}, which does not say whether it "
            f"happened{said}{advice}"
        )


class ResultNotStorable(AgentRunError):
    """A read's or a model's result can't be kept as JSON; the message names the step."""


class ReplayedFailure(AgentRunError):
    """A model request that failed, and that the run survived, fails in the same way on replay.

    Where it can be, it is also of the type that the first error had.
    """

    def __str__(self) -> str:
        return str(self.args[0])
