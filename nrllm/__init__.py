"""Pydantic AI agents as durable runs of `agentruns`.

Everything an application needs is here: `register_agent`, `effect`, `ToolEffect`,
`EffectNotApplied`, `EffectLanded`, `idempotency_key`, `RunInfo`, `Declaration`, `ask_person`,
`ask_human`, `event_place`, `EventPlace`, `PolicyDenied`, and for the function that a write declares as `verify`: `Answer`, `WriteInDoubt`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentruns.enums import ToolEffect as ToolEffect
    from agentruns.exceptions import EffectLanded as EffectLanded
    from agentruns.exceptions import EffectNotApplied as EffectNotApplied
    from agentruns.registry import Answer as Answer
    from agentruns.registry import WriteInDoubt as WriteInDoubt

    from .current import idempotency_key as idempotency_key
    from .effects import Declaration as Declaration
    from .effects import effect as effect
    from .events import EventPlace as EventPlace
    from .events import event_place as event_place
    from .exceptions import PolicyDenied as PolicyDenied
    from .questions import ask_human as ask_human
    from .questions import ask_person as ask_person
    from .registration import RunInfo as RunInfo
    from .registration import register_agent as register_agent

# Looked up on first use: Django imports this package before its models can be loaded.
_HOMES = {
    "Answer": "agentruns.registry",
    "Declaration": ".effects",
    "EffectLanded": "agentruns.exceptions",
    "EffectNotApplied": "agentruns.exceptions",
    "EventPlace": ".events",
    "PolicyDenied": ".exceptions",
    "RunInfo": ".registration",
    "ToolEffect": "agentruns.enums",
    "WriteInDoubt": "agentruns.registry",
    "ask_human": ".questions",
    "ask_person": ".questions",
    "effect": ".effects",
    "event_place": ".events",
    "idempotency_key": ".current",
    "register_agent": ".registration",
}

__all__ = [
    "Answer",
    "Declaration",
    "EffectLanded",
    "EffectNotApplied",
    "EventPlace",
    "PolicyDenied",
    "RunInfo",
    "ToolEffect",
    "WriteInDoubt",
    "ask_human",
    "ask_person",
    "effect",
    "event_place",
    "idempotency_key",
    "register_agent",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
