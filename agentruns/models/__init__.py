from __future__ import annotations

from .event import Event
from .run import AgentRun
from .step import Step, StepCall

__all__ = ["AgentRun", "Event", "Step", "StepCall"]
