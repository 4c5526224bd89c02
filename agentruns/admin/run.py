from __future__ import annotations

from django.contrib import admin

from ..models import AgentRun
from .actions import RunActions
from .runlist import RunList


@admin.register(AgentRun)
class AgentRunAdmin(RunList, RunActions):
    """Runs, to be looked at and acted on: a list, pages and verbs, but no form of the row."""
