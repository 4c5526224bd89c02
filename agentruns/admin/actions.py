from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..api import cancel, retry, wake
from ..enums import RunStatus
from ..exceptions import AgentRunError
from .pages import RunPages
from .versions import fail_runs, move_runs

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from ..models import AgentRun
    from ..models.querysets import AgentRunQuerySet


class RunActions(RunPages):
    """What may be done to one run or to several, after a question, each by a verb of the run."""

    actions = ("cancel_runs", "retry_runs", "wake_runs", move_runs, fail_runs)

    @admin.action(permissions=["cancel"], description=gettext_lazy("Cancel the selected runs"))
    def cancel_runs(self, request: HttpRequest, queryset: AgentRunQuerySet) -> HttpResponse | None:
        if request.POST.get("confirmed") != "yes":
            return self._page(
                request, "confirm_cancel", title=_("Cancel these runs?"), runs=list(queryset)
            )

        def cancel_one(run: AgentRun, by: str) -> str:
            if cancel(run.uuid, by=by) == RunStatus.CANCELLED:
                return ""
            return _("it is inside a write, and is cancelled when that is recorded")

        self._each(request, queryset, cancel_one)
        return None

    @admin.action(permissions=["retry"], description=gettext_lazy("Retry the selected runs"))
    def retry_runs(self, request: HttpRequest, queryset: AgentRunQuerySet) -> HttpResponse | None:
        if request.POST.get("confirmed") != "yes":
            return self._page(
                request, "confirm_retry", title=_("Retry these runs?"), runs=list(queryset)
            )

        def retry_one(run: AgentRun, by: str) -> str:
            retry(run.uuid, by=request.user, reason=request.POST.get("reason", ""))
            return ""

        self._each(request, queryset, retry_one)
        return None

    @admin.action(permissions=["wake"], description=gettext_lazy("Wake the selected runs"))
    def wake_runs(self, request: HttpRequest, queryset: AgentRunQuerySet) -> HttpResponse | None:
        if request.POST.get("confirmed") != "yes":
            return self._page(
                request, "confirm_wake", title=_("Wake these runs?"), runs=list(queryset)
            )

        def wake_one(run: AgentRun, by: str) -> str:
            return "" if wake(run.uuid, by=by) else _("it is not queued, or its time has not come")

        self._each(request, queryset, wake_one)
        return None

    def _each(
        self, request: HttpRequest, runs: AgentRunQuerySet, act: Callable[[AgentRun, str], str]
    ) -> None:
        """Do it to each run; say for how many it was done, and of each other one why not."""
        done = 0
        for run in runs:
            try:
                why_not = act(run, request.user.get_username())
            except AgentRunError as refusal:
                why_not = str(refusal)
            if why_not:
                self.message_user(request, f"{run}: {why_not}", messages.WARNING)
            done += not why_not
        if done < len(runs) and (written := request.POST.get("reason", "").strip()):
            said = _("What you wrote: %(reason)s") % {"reason": written}
            self.message_user(request, said, messages.INFO)
        if done:
            said = ngettext("Done for %(count)d run.", "Done for %(count)d runs.", done)
            self.message_user(request, said % {"count": done}, messages.SUCCESS)
