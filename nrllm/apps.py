from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, register

if TYPE_CHECKING:
    from agentruns.failures import Failure


class NrllmConfig(AppConfig):
    name = "nrllm"
    verbose_name = "Agents"

    def ready(self) -> None:
        from agentruns.failures import register_classifier

        register(check_tools, "nrllm")
        register_classifier(classify_agent_failure)


# Pydantic AI takes a second to import: a process in which no agent is registered never does.


def check_tools(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check what every registered agent's tools declare, and that somebody looks for agents at all."""
    if not apps.is_installed("agentruns"):
        return [
            Error(
                "'nrllm' is in INSTALLED_APPS, but 'agentruns' is not: no agent is found, and no run "
                "can be kept.",
                hint="Add 'agentruns' to INSTALLED_APPS.",
                id="nrllm.E003",
            )
        ]
    if f"{__package__}.registration" not in sys.modules:
        return []
    from .checks import check_tools

    return check_tools()


def classify_agent_failure(error: BaseException) -> Failure | None:
    """Say what an error of Pydantic AI means for the verdict, or None if it is not one of its."""
    if "pydantic_ai" not in sys.modules:
        return None
    from .failures import classify_agent_failure

    return classify_agent_failure(error)
