from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..enums import EventKind
from ..fields import PayloadField
from .querysets import Manager


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

    def __str__(self) -> str:
        return f"{self.kind} at {self.at}"
