from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class AgentRunsConfig(AppConfig):
    name = "agentruns"
    verbose_name = _("Agent runs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, limitchecks, mariadb, payloadchecks, queuechecks  # noqa: F401

        autodiscover_modules("agents")
