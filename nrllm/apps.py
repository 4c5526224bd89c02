from __future__ import annotations

from django.apps import AppConfig


class NrllmConfig(AppConfig):
    name = "nrllm"
    verbose_name = "Agents"

    def ready(self) -> None:
        from agentruns.failures import register_classifier

        from . import checks, subagents  # noqa: F401  (registers the checks)
        from .failures import classify_agent_failure

        register_classifier(classify_agent_failure)
        subagents.install()
