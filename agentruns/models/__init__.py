from __future__ import annotations

from .event import Event
from .limit import AgentLimit
from .run import AgentRun
from .step import Step, StepCall

__all__ = ["AgentLimit", "AgentRun", "Event", "Step", "StepCall"]
