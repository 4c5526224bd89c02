"""What is done to runs of a version that no worker serves: move them, or give them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import registry
from ..api import fail, move
from ..enums import RunStatus
from ..models.operator import MOVABLE

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from ..models import AgentRun
    from .actions import RunActions


def version_verbs(run: AgentRun) -> list[tuple[str, str]]:
    """The buttons that the run's state allows: the action of the list and its label."""
    verbs = []
    # A write in doubt is settled first; the list's action moves such a run all the same.
    if run.status in MOVABLE and not run.pending_effect:
        verbs.append(("move_runs", _("Move this run to another version")))
    if run.status == RunStatus.QUEUED:
        verbs.append(("fail_runs", _("Give this run up")))
    return verbs


@admin.action(
    permissions=["move"], description=gettext_lazy("Move the selected runs to another version")
)
def move_runs(page: RunActions, request: HttpRequest, queryset: Any) -> HttpResponse | None:
    if request.POST.get("confirmed") != "yes":
        runs = list(queryset)
        return page._page(
            request,
            "confirm_move",
            title=_("Move these runs to another version?"),
            runs=runs,
            version=served_for(runs),
        )

    def move_one(run: AgentRun, by: str) -> str:
        version, why = request.POST.get("version", ""), request.POST.get("reason", "")
        move(run.uuid, version, by=by, reason=why)
        return ""

    page._each(request, queryset, move_one)
    return None


@admin.action(permissions=["move"], description=gettext_lazy("Give the selected runs up"))
def fail_runs(page: RunActions, request: HttpRequest, queryset: Any) -> HttpResponse | None:
    if request.POST.get("confirmed") != "yes":
        return page._page(
            request, "confirm_fail", title=_("Give these runs up?"), runs=list(queryset)
        )

    def fail_one(run: AgentRun, by: str) -> str:
        fail(run.uuid, by=by, reason=request.POST.get("reason", ""))
        return ""

    page._each(request, queryset, fail_one)
    return None


def served_for(runs: list[AgentRun]) -> str:
    """The version that this process has of these runs' agent; '' if they are of several agents."""
    versions = {registry.served().get(run.agent, "") for run in runs}
    return versions.pop() if len(versions) == 1 else ""
