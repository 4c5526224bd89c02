from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .querysets import Manager


class AgentLimit(models.Model):
    """What a claim locks before it counts the runs of an agent that has a limit.

    The number itself stands in the code, beside the agent. Agents without a limit have no row.
    """

    agent = models.CharField(max_length=200, unique=True)

    objects = Manager()

    class Meta:
        verbose_name = _("limit of an agent")
        verbose_name_plural = _("limits of agents")
        base_manager_name = "objects"
        default_permissions = ()

    def __str__(self) -> str:
        return self.agent
