from __future__ import annotations

import os
from dataclasses import dataclass

from django.core.mail import EmailMessage, get_connection

SMTP_PORT = "DEMO_SMTP_PORT"


@dataclass(frozen=True)
class Order:
    number: int
    customer: str
    email: str
    article: str


ORDERS = {
    order.number: order
    for order in (
        Order(1001, "Ada Park", "ada@example.com", "reading lamp"),
        Order(1002, "Ben Ortiz", "ben@example.com", "coffee grinder"),
        Order(1003, "Cleo Marsh", "cleo@example.com", "garden chair"),
    )
}


def task(order: Order) -> str:
    """What an employee asks the agent to do."""
    return (
        f"The parcel of order {order.number} was lost. Look the order up, tell the customer in one "
        "e-mail that a replacement is on its way, and then tell me in one sentence what you did."
    )


def send(to: str, subject: str, body: str, idempotency_key: str) -> None:
    """Send one e-mail through the shop's mail server."""
    message = EmailMessage(
        subject,
        body,
        "Lamps & Chairs <desk@example.com>",
        [to],
        headers={
            "Message-ID": f"<{idempotency_key}@example.com>",
            "X-Idempotency-Key": idempotency_key,
        },
        connection=get_connection(
            "django.core.mail.backends.smtp.EmailBackend",
            host="127.0.0.1",
            port=int(os.environ[SMTP_PORT]),
        ),
    )
    message.send()
