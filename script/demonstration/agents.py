"""The agent of the demonstration: what a Django developer writes, and nothing else."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic_ai import Agent, ModelRetry

from nrllm import ToolEffect, effect, idempotency_key, register_agent

from .model import model
from .shop import ORDERS, send

desk: Agent[None, str] = Agent(
    model(),
    name="support_desk",
    instructions="You work at the support desk of a shop. Do exactly what you are asked, once.",
)


@desk.tool_plain
@effect(ToolEffect.READ_ONLY)
def look_up_order(number: int) -> dict[str, Any]:
    """Return an order: the customer's name and e-mail address, and the article."""
    if number not in ORDERS:
        raise ModelRetry(f"There is no order {number}.")
    return asdict(ORDERS[number])


@desk.tool_plain
@effect(ToolEffect.NON_IDEMPOTENT_WRITE)
def send_email(to: str, subject: str, body: str) -> str:
    """Send an e-mail to a customer."""
    send(to, subject, body, idempotency_key())
    return f"The e-mail to {to} was sent."


register_agent("support_desk", desk)
