from __future__ import annotations

from django.db import models


class LedgerEntry(models.Model):
    """What a transactional write leaves; nothing is unique, so that a second one would show."""

    run = models.UUIDField()
    idempotency_key = models.TextField()
    amount = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.amount} ({self.idempotency_key})"
