"""The inbox: what runs wait for a person to approve or to answer, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..api import decide, submit_input
from ..deciders import name_of
from ..enums import WAITING, EventKind, StepKind
from ..exceptions import AgentRunError, PayloadUnreadable
from ..models import Step
from .boundform import BoundForm
from .payloads import excerpt, excerpt_columns, harmless, readable, whole_value
from .questionform import AnswerForm
from .sentences import named, sentence
from .wording import duration, moment

if TYPE_CHECKING:
    from ..deciders import Decider
    from ..models import AgentRun
    from ..models.querysets import AgentRunQuerySet
    from .payloads import Excerpt

SHOWN = 50


@dataclass(frozen=True)
class Waiting:
    """One open question of a run."""

    run: AgentRun
    question: Step
    since: str
    age: str
    said: Said | None
    arguments: Excerpt | None


def inbox(runs: AgentRunQuerySet) -> tuple[list[Waiting], bool]:
    """The open questions of the runs that wait longest, with two queries; and whether more wait."""
    found = list(runs.waiting().order_by("created_at", "pk")[: SHOWN + 1])
    by_pk = {run.pk: run for run in found[:SHOWN]}
    questions = Step.objects.open_questions().filter(run_id__in=list(by_pk))
    shown = questions.without_payloads().annotate(**excerpt_columns(["arguments"]))
    rows = [waiting(by_pk[step.run_id], step) for step in shown.order_by("started_at", "pk")]
    return rows, len(found) > SHOWN


def waiting(run: AgentRun, question: Step) -> Waiting:
    now = run.read_at  # type: ignore[attr-defined]
    return Waiting(
        run=run,
        question=question,
        since=moment(question.started_at),
        age=duration(now - question.started_at),
        said=said_by(question),
        arguments=excerpt(question, "arguments"),
    )


@dataclass(frozen=True)
class Said:
    """A question in its own words, and why the answer before was not taken."""

    question: str
    why_again: str


def said_by(question: Step) -> Said | None:
    """The words of what `ask_person` asked; None of anything else, or where they are too long."""
    asked = whole_value(question, "arguments") if question.kind == StepKind.INPUT else None
    if not isinstance(asked, dict) or not isinstance(words := asked.get("question"), str):
        return None
    why = asked.get("why")
    return Said(harmless(words), harmless(why) if isinstance(why, str) else "")


def question_of(run: AgentRun, step: int) -> Step | None:
    """A question of this run, still open or not, with what a page shows of it in full."""
    kinds = (StepKind.APPROVAL, StepKind.INPUT)
    questions = Step.objects.filter(run_id=run.pk, kind__in=kinds)
    shown = questions.annotate(**excerpt_columns(["arguments"], step)).filter(pk=step)
    found: Step | None = shown.first()
    return found


def is_open(run: AgentRun, question: Step) -> bool:
    still_asked = Step.objects.open_questions().filter(pk=question.pk)
    return run.status in WAITING and bool(still_asked.exists())


def how_it_was_answered(run: AgentRun, question: Step) -> str:
    """Why this is not asked any more."""
    kinds = (EventKind.GRANTED, EventKind.DENIED, EventKind.ANSWERED)
    for event in run.history().filter(kind__in=kinds).order_by("-pk")[:SHOWN]:
        if event.details.get("step") == question.key:
            return sentence(
                _("This is not asked any more: %(by)s answered at %(at)s: %(what)s."),
                by=named(event.actor),
                at=moment(event.at),
                what=event.get_kind_display(),
            )
    return _("This is not asked any more: the run went on without it, or was cancelled.")


def whole(question: Step) -> HttpResponse:
    """All of what is asked, as text: nothing in it is ever markup."""
    text = harmless(readable("arguments", question.arguments.text if question.arguments else ""))
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


class DecisionForm(BoundForm):
    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=gettext_lazy("Kept in the history; where the call is denied, its agent is told."),
    )
    read_whole = forms.BooleanField(
        label=gettext_lazy("I have read all of the arguments, not only their beginning"),
        required=False,
        help_text=gettext_lazy("They are too long for this page; approving approves all of them."),
    )

    def __init__(self, *args: Any, cut: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        if not cut:
            del self.fields["read_whole"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        approves = self.data.get("decision") == "approve"
        if approves and "read_whole" in self.fields and not given.get("read_whole"):
            self.add_error("read_whole", _("Read them first: follow the link above."))
        return given


def answer_form(question: Step, data: Any = None) -> DecisionForm | AnswerForm:
    initial = {"digest": question.digest}
    if question.kind == StepKind.APPROVAL:
        shown = excerpt(question, "arguments")
        return DecisionForm(data, initial=initial, cut=shown is not None and shown.cut)
    return AnswerForm(asked(question), data, initial=initial)


def asked(question: Step) -> Any:
    try:
        return question.arguments.value if question.arguments is not None else None
    except PayloadUnreadable:
        return None


def give_answer(
    run: AgentRun, question: Step, form: DecisionForm | AnswerForm, data: Any, by: Decider
) -> str:
    """Give what a valid form holds; what was done, or '' for a refusal, an error of the form."""
    try:
        if isinstance(form, AnswerForm):
            return _submit(run, question, form, name_of(by))
        return _decide(run, question, form, data.get("decision"), by)
    except AgentRunError as refusal:
        form.add_error(None, str(refusal))
        # What is shown beside it now is the question as it stands.
        form.bind_to(question.digest)
        return ""


def _decide(run: AgentRun, question: Step, form: DecisionForm, decision: str, by: Decider) -> str:
    if decision not in ("approve", "deny"):
        form.add_error(None, _("Approve or deny."))
        return ""
    given = form.cleaned_data
    decide(
        run.uuid,
        question.key,
        decision == "approve",
        by=by,
        digest=given["digest"],
        note=given["note"],
    )
    if decision == "approve":
        return _("The call was approved: %(call)s.") % {"call": question.name}
    return _("The call was denied, and its agent is told: %(call)s.") % {"call": question.name}


def _submit(run: AgentRun, question: Step, form: AnswerForm, by: str) -> str:
    digest = form.cleaned_data["digest"]
    submit_input(run.uuid, question.key, form.answer(), by=by, digest=digest)
    return _("Your answer was taken.")


def parts(question: Step) -> Iterator[tuple[str, Excerpt]]:
    shown = excerpt(question, "arguments")
    if shown is not None:
        approval = question.kind == StepKind.APPROVAL
        yield (_("arguments of the call") if approval else _("question")), shown
