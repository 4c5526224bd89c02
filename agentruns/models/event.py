from __future__ import annotations

import logging
from functools import partial
from typing import Any
from uuid import UUID

from django.db import models, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..enums import EventKind
from ..fields import PayloadField
from ..signals import event_recorded
from .querysets import Manager

logger = logging.getLogger("agentruns")


class Event(models.Model):
    """One line of a run's append-only history: what happened, when, by whom, in which epoch."""

    run = models.ForeignKey("agentruns.AgentRun", models.CASCADE, related_name="events")
    kind = models.CharField(max_length=32, choices=EventKind.choices)
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=255, blank=True)
    epoch = models.PositiveIntegerField(default=0)
    data = PayloadField()

    objects = Manager()

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        base_manager_name = "objects"

    @property
    def details(self) -> dict[str, Any]:
        """What the line says beside its kind; of one that can't be read, why."""
        shown = {} if self.data is None else self.data.shown
        return shown if isinstance(shown, dict) else {}

    def __str__(self) -> str:
        return f"{self.kind} at {self.at}"


def is_heard() -> bool:
    """Whether anybody would notice an announcement."""
    return logger.isEnabledFor(logging.INFO) or event_recorded.has_listeners(Event)


def announce_after_commit(uuid: UUID, agent: str, event: Event, data: dict[str, Any]) -> None:
    """Announce an event when the current transaction has committed, or now without one."""
    if is_heard():
        transaction.on_commit(
            partial(announce, uuid, agent, event, data), using=conf.DATABASE, robust=True
        )


def announce(uuid: UUID, agent: str, event: Event, data: dict[str, Any]) -> None:
    """Log a committed event, without payloads, and send it to the application's receivers."""
    logger.info(
        "run %s of %s: %s",
        uuid,
        agent,
        event.kind,
        extra={
            "agentrun": str(uuid),
            "agentrun_event": str(event.kind),
            "agentrun_owner": event.actor,
            "agentrun_epoch": event.epoch,
        },
    )
    event_recorded.send_robust(
        sender=Event,
        uuid=uuid,
        agent=agent,
        kind=EventKind(event.kind),
        actor=event.actor,
        epoch=event.epoch,
        data=data,
    )
