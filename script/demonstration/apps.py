from __future__ import annotations

from django.apps import AppConfig


class DemonstrationConfig(AppConfig):
    name = "script.demonstration"
    label = "demonstration"
    verbose_name = "demonstration"
