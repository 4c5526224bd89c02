from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..api import cancel, retry, wake
from ..enums import TERMINAL, WAITING, RunStatus, StepKind
from ..exceptions import AgentRunError
from ..models import AgentRun
from ..verdict import may_retry_after_fence
from .desk import sections
from .filters import AgentFilter, AttentionFilter, DeadLetterFilter
from .inbox import answer_form, give_answer, inbox, is_open, parts, question_of
from .paginator import BoundedPaginator
from .resolve import doubt_of, give_verdict, is_in_doubt, resolve_form
from .run_page import run_page
from .wording import duration

if TYPE_CHECKING:
    from django.urls import URLPattern

    from ..models.querysets import AgentRunQuerySet

    RunModelAdmin = admin.ModelAdmin[AgentRun]
else:
    RunModelAdmin = admin.ModelAdmin

TEMPLATES = "admin/agentruns/agentrun"


def may_be_retried(run: AgentRun) -> bool:
    """Whether the button is offered; whether it is done, the verb judges under the lock."""
    return run.status == RunStatus.FAILED and may_retry_after_fence(run.standing_fence()[0])


@admin.register(AgentRun)
class AgentRunAdmin(RunModelAdmin):
    """Runs, to be looked at: no add, no delete, no form. Actions call a verb of the run."""

    list_display = (
        "short_uuid", "status_and_reason", "agent", "age", "owner", "lease_left", "retries",
        "fence",
    )  # fmt: skip
    list_filter = (AttentionFilter, DeadLetterFilter, "status", AgentFilter)
    search_fields = ("uuid", "agent", "correlation_id", "requested_by")
    search_help_text = gettext_lazy("The whole uuid, agent, correlation id or requester.")
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 0
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ("cancel_runs", "retry_runs", "wake_runs")

    # Who may do what.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AgentRun | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AgentRun | None = None) -> bool:
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "cancel_agentrun")

    def has_wake_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry_agentrun")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "resolve_agentrun")

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "decide_agentrun")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry_agentrun")

    def has_payload_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "view_payload")

    def _may(self, request: HttpRequest, permission: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{permission}")

    # The list.

    def get_queryset(self, request: HttpRequest) -> AgentRunQuerySet:
        # The database's time, with which its leases are compared.
        runs: AgentRunQuerySet = AgentRun.objects.without_payloads().annotate(read_at=Now())
        return runs.order_by(*self.ordering)

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(uuid=UUID(term)), False
        except ValueError:
            named = Q(agent=term) | Q(correlation_id=term) | Q(requested_by=term)
            return queryset.filter(named), False

    def response_action(
        self, request: HttpRequest, queryset: Any, *args: Any, **options: Any
    ) -> HttpResponse | None:
        # 'Select all' would act on rows that nobody has seen; the page does not offer it.
        if request.POST.get("select_across", "0") != "0":
            raise PermissionDenied
        answer: HttpResponse | None = super().response_action(request, queryset, *args, **options)
        return answer

    @admin.display(description=gettext_lazy("run"))
    def short_uuid(self, run: AgentRun) -> str:
        return str(run.uuid)

    @admin.display(description=gettext_lazy("status"))
    def status_and_reason(self, run: AgentRun) -> str:
        if run.status == RunStatus.FAILED:
            return f"{run.get_status_display()}: {run.get_termination_reason_display()}"
        return run.get_status_display()

    @admin.display(description=gettext_lazy("age"))
    def age(self, run: AgentRun) -> str:
        return duration(run.read_at - run.created_at)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("owner"), empty_value="")
    def owner(self, run: AgentRun) -> str:
        return run.claimed_by

    @admin.display(description=gettext_lazy("lease left"))
    def lease_left(self, run: AgentRun) -> str:
        if run.lease_expires_at is None:
            return ""
        left = run.lease_expires_at - run.read_at  # type: ignore[attr-defined]
        if left.total_seconds() < 0:
            return _("ran out %(ago)s ago") % {"ago": duration(left)}
        return duration(left)

    @admin.display(description=gettext_lazy("retries"))
    def retries(self, run: AgentRun) -> int:
        return run.requeue_count

    @admin.display(description=gettext_lazy("fence"))
    def fence(self, run: AgentRun) -> str:
        if run.pending_effect and run.resolution:
            return f"{run.get_pending_effect_display()} ({run.get_resolution_display()})"
        return run.get_pending_effect_display() if run.pending_effect else ""

    # The pages.

    def get_urls(self) -> list[URLPattern]:
        pages: dict[str, tuple[str, Callable[..., HttpResponse]]] = {
            "desk": ("desk/", self.desk_view),
            "inbox": ("inbox/", self.inbox_view),
            "answer": ("<path:object_id>/answer/<int:step>/", self.answer_view),
            "resolve": ("<path:object_id>/resolve/", self.resolve_view),
        }
        prefix = f"{self.opts.app_label}_{self.opts.model_name}"
        own = [
            path(route, self.admin_site.admin_view(view), name=f"{prefix}_{name}")
            for name, (route, view) in pages.items()
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"may_decide": self.has_decide_permission(request), **(extra_context or {})}
        return super().changelist_view(request, context)

    def desk_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        runs = self.get_queryset(request)
        return self._page(
            request, "desk", title=_("The operator's desk"), sections=list(sections(runs))
        )

    def resolve_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a write in doubt and take a verdict on it, one run at a time."""
        if not (self.has_view_permission(request) and self.has_resolve_permission(request)):
            raise PermissionDenied
        run = self.get_object(request, unquote(object_id))
        if run is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if not is_in_doubt(run):
            said = _("There is no write in doubt here any more: somebody has decided on it.")
            self.message_user(request, said, messages.WARNING)
            return self._to_run(run)
        doubt = doubt_of(run, payloads=self.has_payload_permission(request))
        form = resolve_form(doubt, request.POST if request.method == "POST" else None)
        if form.is_valid() and give_verdict(run, form, request.user.get_username()):
            self.message_user(request, _("Your verdict was taken."), messages.SUCCESS)
            return self._to_run(run)
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
        if run is None or question is None or not is_open(question):
            said = _("This is not asked any more: it was answered, or the run went on without it.")
            self.message_user(request, said, messages.WARNING)
            return redirect("admin:agentruns_agentrun_inbox")
        form = answer_form(question, request.POST if request.method == "POST" else None)
        by = request.user.get_username()
        if form.is_valid() and give_answer(run, question, form, request.POST, by):
            self.message_user(request, _("Your answer was taken."), messages.SUCCESS)
            return redirect("admin:agentruns_agentrun_inbox")
        return self._page(
            request,
            "answer",
            title=_("A run waits for you"),
            run=run,
            question=question,
            approval=question.kind == StepKind.APPROVAL,
            parts=list(parts(question)),
            form=form,
        )

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
        if not self.has_view_permission(request, run) or request.method != "GET":
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
        may_resolve = self.has_resolve_permission(request) and is_in_doubt(run)
        page = run_page(run, payloads=self.has_payload_permission(request))
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
            "opts": self.opts,
            "action_checkbox_name": helpers.ACTION_CHECKBOX_NAME,
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"{TEMPLATES}/{template}.html", context)

    # What may be done.

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
            retry(run.uuid, by=by, reason=request.POST.get("reason", ""))
            return ""

        self._each(request, queryset, retry_one)
        return None

    @admin.action(permissions=["wake"], description=gettext_lazy("Wake the selected runs"))
    def wake_runs(self, request: HttpRequest, queryset: AgentRunQuerySet) -> None:
        def wake_one(run: AgentRun, by: str) -> str:
            return "" if wake(run.uuid, by=by) else _("it is not queued, or its time has not come")

        self._each(request, queryset, wake_one)

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
        if done:
            said = ngettext("Done for %(count)d run.", "Done for %(count)d runs.", done)
            self.message_user(request, said % {"count": done}, messages.SUCCESS)
