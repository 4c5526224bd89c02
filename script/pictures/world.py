"""A made-up day of a shop that lets agents answer customers, charge cards and read the news."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

from agentruns.enums import FailureClass, StepKind, StepOutcome
from agentruns.failures import Failure
from agentruns.fields import Payload
from agentruns.models import AgentRun
from agentruns.models.step import Ending

from .life import Life

WORKERS = ("queue:web-1:4121:9f31c2", "queue:web-2:3902:b07d15")
DOWN = Failure(FailureClass.TRANSIENT)
ORDER = {"number": 4711, "customer": "ann@example.org", "total": "129.00 EUR", "paid": False}
EMAIL = {
    "to": "ann@example.org",
    "subject": "Your order 4711",
    "body": "Dear Ann,\n\nyour parcel left our warehouse this morning.",
}


class NobodyIsWoken:
    """A dispatcher for runs that only stand there to be looked at."""

    def wake(self, uuid: UUID) -> None:
        return None


def ago(**length: float) -> timedelta:
    return timedelta(**length)


def a_day(chance: random.Random) -> None:
    """A day's ordinary runs: most complete, some are retried, a few fail."""
    for minute in range(23 * 60, 40, -11):
        busy = 3 if 6 * 60 < minute < 16 * 60 else 1
        for _ in range(chance.randint(0, busy)):
            ordinary(chance, ago(minutes=minute - chance.random() * 10))


def ordinary(chance: random.Random, since: timedelta) -> None:
    kind, worker = chance.random(), chance.choice(WORKERS)
    if kind < 0.15:
        report = Life("research", {"topic": "prices of paper"}, since, requested_by="weekly report")
        report.taken(worker).thought(chance.uniform(4, 14))
        report.read("search_news", {"query": "paper prices"}, [], chance.uniform(0.3, 6))
        report.thought(chance.uniform(9, 30)).completed("Prices rise slowly.")
        return
    answer = Life("support", {"message": "Where is my parcel?"}, since, requested_by="shop")
    answer.taken(worker).thought(chance.uniform(1, 5))
    answer.read("look_up_order", {"number": 4711}, ORDER, chance.uniform(0.02, 0.2))
    if kind < 0.22:
        answer.lost()
        answer.taken(chance.choice(WORKERS), 6)
    if kind > 0.97:
        answer.failed(Failure(FailureClass.CLIENT_ERROR), ValueError("context length exceeded"))
        return
    answer.thought(chance.uniform(1, 4))
    answer.wrote("send_email", EMAIL, "sent", chance.uniform(0.2, 1.4)).completed("Answered.")


def what_needs_a_person() -> AgentRun:
    """What the desk and the inbox show; returns the run whose page is shown."""
    first, second = WORKERS
    charge = Life(
        "billing",
        {"order": 4711},
        ago(minutes=31),
        requested_by="checkout",
        correlation_id="order 4711",
    )
    charge.taken(first).thought(3.1).read("look_up_order", {"number": 4711}, ORDER, 0.2).lost()
    charge.taken(second, 6).thought(9.4).read(
        "look_up_card", {"order": 4711}, {"last4": "4242"}, 2.3
    )
    charge.thought(14.2).writing(
        "charge_card", {"order": 4711, "amount": "129.00", "currency": "EUR"}
    )
    charge.lost()

    letter = Life(
        "support", {"message": "Where is my parcel?"}, ago(minutes=12), requested_by="shop"
    )
    letter.taken(first).thought(2.2).writing("send_email", EMAIL).lost()
    letter.reported_late(Ending(StepOutcome.RETURNED, Payload.of("sent")), 20)

    news = Life("research", {"topic": "tariffs"}, ago(hours=3), requested_by="weekly report")
    for pause in (0.5, 6, 11, 23):
        news.taken(second, pause)
        news.failed(DOWN, ConnectionError("the model's endpoint does not answer"))
    locked = Life("support", {"message": "Hello?"}, ago(hours=5), requested_by="shop")
    locked.taken(first).thought(1.1)
    locked.failed(Failure(FailureClass.AUTHENTICATION), PermissionError("the API key was refused"))

    refund = Life("billing", {"order": 4680}, ago(hours=2, minutes=10), requested_by="ben")
    refund.taken(second).thought(4.0)
    refund.asked(
        StepKind.APPROVAL,
        "refund",
        {"order": 4680, "amount": "1200.00", "currency": "EUR", "why": "arrived broken"},
    )
    address = Life("support", {"message": "Please redirect my parcel"}, ago(minutes=48))
    address.taken(first).thought(2.9).asked(StepKind.INPUT, "which_address", QUESTION)

    for minutes in (4, 2):
        Life("research", {"topic": "freight"}, ago(minutes=minutes), requested_by="weekly report")
    now = Life("support", {"message": "And my invoice?"}, ago(seconds=9), requested_by="shop")
    now.taken(first).thought(4.1).writing("send_email", {**EMAIL, "subject": "Your invoice"})
    return charge.run


QUESTION = {
    "question": "To which address shall the parcel go?",
    "schema": {
        "type": "object",
        "properties": {
            "street": {"type": "string", "title": "Street", "maxLength": 100},
            "city": {"type": "string", "title": "City", "maxLength": 60},
            "express": {"type": "boolean", "title": "By express"},
        },
        "required": ["street", "city"],
    },
}


def make_runs() -> AgentRun:
    a_day(random.Random(7))  # noqa: S311
    return what_needs_a_person()
