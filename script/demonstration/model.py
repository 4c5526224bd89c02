from __future__ import annotations

import os
from typing import Any

from pydantic_ai.models import Model

from .shop import ORDERS, Order

MODEL_URL = "DEMO_MODEL_URL"

# The first whose key is set; DEMO_MODEL names another one, in Pydantic AI's words.
PROVIDERS = {
    "OPENAI_API_KEY": "openai-chat:gpt-4.1-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
}


def real_model() -> str | None:
    """Return the name of the provider's model that a key in the environment allows, or None."""
    for key, name in PROVIDERS.items():
        if os.environ.get(key):
            return os.environ.get("DEMO_MODEL", name)
    return None


def model() -> Model | str:
    return real_model() or local_model()


def local_model() -> Model:
    """Return a model behind the local endpoint; without one, it can be looked at but not asked."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    url = os.environ.get(MODEL_URL, "http://127.0.0.1:9/v1")
    return OpenAIChatModel("local", provider=OpenAIProvider(base_url=url, api_key="none"))


def script() -> dict[str, Any]:
    """Return what the local endpoint answers, in the form of `tests.servers.script`."""
    return {
        "conversations": {
            f"order {order.number}": conversation(order) for order in ORDERS.values()
        },
        # The third run's worker waits here for its end: its e-mail is recorded, its answer is not
        # there yet. Only once: the worker that takes over is answered.
        "faults": [{"marker": "order 1003", "turn": 2, "hold": True}],
    }


def conversation(order: Order) -> list[dict[str, Any]]:
    email = {
        "to": order.email,
        "subject": f"A new {order.article} is on its way",
        "body": (
            f"Dear {order.customer},\n\nyour parcel (order {order.number}) was lost on its way. "
            f"We have sent you another {order.article} today.\n\nYour support desk"
        ),
    }
    return [
        {"tool_calls": [{"name": "look_up_order", "arguments": {"number": order.number}}]},
        {"tool_calls": [{"name": "send_email", "arguments": email}]},
        {"text": f"I told {order.customer} that another {order.article} is on its way."},
    ]
