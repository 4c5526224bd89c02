from __future__ import annotations

from .run import AgentRunAdmin

__all__ = ["AgentRunAdmin"]
