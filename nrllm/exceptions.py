from __future__ import annotations

from agentruns.exceptions import AgentRunError


class AgentRefused(AgentRunError):
    """Something of this agent can't run behind the fence; the message says what to do instead."""


class PolicyDenied(AgentRunError):
    """Raise in a guardrail (a hook, a tool that reads): the run must not go on, and is not retried."""


class RequestRefused(AgentRunError):
    """The request of a run is neither a prompt nor `{"prompt": ...}`; nothing was executed."""


class UnclearOutcome(AgentRunError):
    """A write's body ended in a way that does not say whether the effect happened."""

    def __init__(self, tool: str, kind: str, message: str = "") -> None:
        super().__init__(tool, kind, message)
        self.tool = tool
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return (
            f"the write {self.tool!r} ended with {self.kind!r}, which does not say whether it "
            f"happened{said}"
        )


class ResultNotStorable(AgentRunError):
    """A read's or a model's result can't be kept as JSON; the message names the step."""


class ReplayedFailure(AgentRunError):
    """A model request that failed, and that the run survived, fails in the same way on replay."""
