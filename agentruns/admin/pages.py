from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from ..enums import TERMINAL, WAITING, RunStatus, StepKind
from ..figures import COUNTED
from ..verdict import may_retry_after_fence
from .base import RunBase
from .dashboard import READ_EVENTS, READ_RUNS, WINDOWS, dashboard
from .desk import sections
from .inbox import (
    answer_form,
    give_answer,
    how_it_was_answered,
    inbox,
    is_open,
    parts,
    question_of,
    said_by,
    whole,
)
from .payloads import made_harmless
from .resolve import doubt_of, give_verdict, how_it_was_decided, resolve_form
from .run_page import is_in_doubt, run_page
from .versions import version_verbs

if TYPE_CHECKING:
    from django.urls import URLPattern

    from ..models import AgentRun

TEMPLATES = "admin/agentruns/agentrun"
# The primary key of a run, as the list's boxes give it.
KEY = re.compile(r"[0-9]{1,18}")


def may_be_retried(run: AgentRun) -> bool:
    """Whether the button is offered; whether it is done, the verb judges under the lock."""
    return run.status == RunStatus.FAILED and may_retry_after_fence(run.standing_fence()[0])


class RunPages(RunBase):
    """The pages beside the list. Each asks for its permission, shows, and calls one function."""

    def get_urls(self) -> list[URLPattern]:
        pages: dict[str, tuple[str, Callable[..., HttpResponse]]] = {
            "desk": ("desk/", self.desk_view),
            "dashboard": ("dashboard/", self.dashboard_view),
            "inbox": ("inbox/", self.inbox_view),
            "answer": ("<path:object_id>/answer/<int:step>/", self.answer_view),
            "asked": ("<path:object_id>/answer/<int:step>/asked/", self.asked_view),
            "resolve": ("<path:object_id>/resolve/", self.resolve_view),
        }
        prefix = f"{self.opts.app_label}_{self.opts.model_name}"
        own = [
            path(route, self.admin_site.admin_view(view), name=f"{prefix}_{name}")
            for name, (route, view) in pages.items()
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        allowed = {"", *self.get_actions(request)}
        if not allowed.issuperset(request.POST.getlist("action")):
            raise PermissionDenied
        if not all(map(KEY.fullmatch, request.POST.getlist(helpers.ACTION_CHECKBOX_NAME))):
            raise BadRequest("what is selected are no runs")
        return made_harmless(
            super().changelist_view(
                request, {**self._navigation(request, "changelist"), **(extra_context or {})}
            )
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        return made_harmless(super().history_view(request, object_id, extra_context))

    def _navigation(self, request: HttpRequest, current: str) -> dict[str, Any]:
        pages = [("changelist", _("All runs")), ("desk", _("The operator's desk"))]
        if self.has_decide_permission(request):
            pages.append(("inbox", _("The inbox")))
        pages.append(("dashboard", _("The dashboard")))
        prefix = "admin:agentruns_agentrun_"
        return {
            "pages": [(prefix + name, title) for name, title in pages],
            "current_page": prefix + current,
        }

    def desk_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        runs = self.get_queryset(request)
        return self._page(
            request, "desk", title=_("The operator's desk"), sections=list(sections(runs))
        )

    def dashboard_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        board = dashboard(request.GET.get("window"))
        return self._page(
            request,
            "dashboard",
            title=_("The dashboard"),
            board=board,
            windows=WINDOWS,
            counted=COUNTED,
            what_runs=_("Drawn from the newest %(count)d runs.") % {"count": READ_RUNS},
            what_events=_("Drawn from the newest %(count)d events.") % {"count": READ_EVENTS},
        )

    def resolve_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a write in doubt and take a verdict on it, one run at a time."""
        if not (self.has_view_permission(request) and self.has_resolve_permission(request)):
            raise PermissionDenied
        run = self.get_object(request, unquote(object_id))
        if run is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if not is_in_doubt(run) and request.method != "POST":
            self.message_user(request, how_it_was_decided(run), messages.WARNING)
            return self._to_run(run)
        by, payloads = request.user, self.has_payload_permission(request)
        doubt = doubt_of(run, by, payloads=payloads)
        form = resolve_form(doubt, request.POST if request.method == "POST" else None)
        if form.is_valid():
            if said := give_verdict(run, form, request.user):
                self.message_user(request, said, messages.SUCCESS)
                return self._to_run(run)
            doubt = doubt_of(self.get_queryset(request).get(pk=run.pk), by, payloads=payloads)
            form.bind_to(doubt.digest)
        title = _("Decide on an interrupted write")
        return self._page(request, "resolve", title=title, doubt=doubt, form=form)

    def inbox_view(self, request: HttpRequest) -> HttpResponse:
        if not (self.has_view_permission(request) and self.has_decide_permission(request)):
            raise PermissionDenied
        rows, more = inbox(self.get_queryset(request))
        return self._page(request, "inbox", title=_("The inbox"), rows=rows, more=more)

    def answer_view(self, request: HttpRequest, object_id: str, step: int) -> HttpResponse:
        """Show what a run asks and take the answer. The permission to decide shows the call, too."""
        if not (self.has_view_permission(request) and self.has_decide_permission(request)):
            raise PermissionDenied
        run = self.get_object(request, unquote(object_id))
        question = question_of(run, step) if run is not None else None
        if (
            run is None
            or question is None
            or (not is_open(run, question) and request.method != "POST")
        ):
            said = _("This is not asked any more: it was answered, or the run went on without it.")
            self.message_user(request, said, messages.WARNING)
            return redirect("admin:agentruns_agentrun_inbox")
        form = answer_form(question, request.POST if request.method == "POST" else None)
        if form.is_valid() and (
            done := give_answer(run, question, form, request.POST, request.user)
        ):
            self.message_user(request, done, messages.SUCCESS)
            return redirect("admin:agentruns_agentrun_inbox")
        return self._page(
            request,
            "answer",
            title=_("A run waits for you"),
            run=run,
            question=question,
            over="" if is_open(run, question) else how_it_was_answered(run, question),
            approval=question.kind == StepKind.APPROVAL,
            said=said_by(question),
            parts=list(parts(question)),
            form=form,
        )

    def asked_view(self, request: HttpRequest, object_id: str, step: int) -> HttpResponse:
        """Show the whole of what a run asks, for those who may decide on it."""
        if not (self.has_view_permission(request) and self.has_decide_permission(request)):
            raise PermissionDenied
        run = self.get_object(request, unquote(object_id))
        question = question_of(run, step) if run is not None else None
        if question is None or question.digest != request.GET.get("digest", ""):
            said = _("This is not asked any more, or has changed: look at it again.")
            self.message_user(request, said, messages.WARNING)
            return redirect("admin:agentruns_agentrun_inbox")
        return whole(question)

    def _to_run(self, run: AgentRun) -> HttpResponse:
        return redirect("admin:agentruns_agentrun_change", run.pk)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        run = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, run) or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if run is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        verbs = []
        if self.has_cancel_permission(request) and run.status not in TERMINAL:
            verbs.append(("cancel_runs", _("Cancel this run")))
        if self.has_retry_permission(request) and may_be_retried(run):
            verbs.append(("retry_runs", _("Retry this run")))
        if self.has_wake_permission(request) and run.status == RunStatus.QUEUED:
            verbs.append(("wake_runs", _("Wake this run")))
        if self.has_move_permission(request):
            verbs += version_verbs(run)
        may_resolve = self.has_resolve_permission(request) and is_in_doubt(run)
        page = run_page(run, request.user, payloads=self.has_payload_permission(request))
        return self._page(
            request,
            "run",
            title=str(run),
            page=page,
            verbs=verbs,
            may_resolve=may_resolve,
            may_decide=self.has_decide_permission(request) and run.status in WAITING,
            is_moving=run.status not in TERMINAL,
            is_followed=run.status not in TERMINAL and "follow" in request.GET,
        )

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            **self._navigation(request, template),
            "opts": self.opts,
            "action_checkbox_name": helpers.ACTION_CHECKBOX_NAME,
            **context,
        }
        request.current_app = self.admin_site.name
        return made_harmless(TemplateResponse(request, f"{TEMPLATES}/{template}.html", context))
