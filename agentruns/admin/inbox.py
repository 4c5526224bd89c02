"""The inbox: what runs wait for a person to approve or to answer, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..api import decide, submit_input
from ..enums import StepKind
from ..exceptions import AgentRunError, PayloadUnreadable
from ..models import Step
from .payloads import excerpt, excerpt_columns
from .questionform import AnswerForm
from .wording import duration, moment

if TYPE_CHECKING:
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
        arguments=excerpt(question, "arguments"),
    )


def question_of(run: AgentRun, step: int) -> Step | None:
    """A question of this run, still open or not, with what a page shows of it in full."""
    kinds = (StepKind.APPROVAL, StepKind.INPUT)
    questions = Step.objects.filter(run_id=run.pk, kind__in=kinds)
    shown = questions.annotate(**excerpt_columns(["arguments"], step)).filter(pk=step)
    found: Step | None = shown.first()
    return found


def is_open(question: Step) -> bool:
    return bool(Step.objects.open_questions().filter(pk=question.pk).exists())


class DecisionForm(forms.Form):
    digest = forms.CharField(widget=forms.HiddenInput, required=False)
    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=gettext_lazy("Kept in the history; where the call is denied, its agent is told."),
    )


def answer_form(question: Step, data: Any = None) -> DecisionForm | AnswerForm:
    initial = {"digest": question.digest}
    if question.kind == StepKind.APPROVAL:
        return DecisionForm(data, initial=initial)
    return AnswerForm(asked(question), data, initial=initial)


def asked(question: Step) -> Any:
    try:
        return question.arguments.value if question.arguments is not None else None
    except PayloadUnreadable:
        return None


def give_answer(
    run: AgentRun, question: Step, form: DecisionForm | AnswerForm, data: Any, by: str
) -> bool:
    """Give what a valid form holds; a refusal becomes an error of the form."""
    try:
        if isinstance(form, AnswerForm):
            _submit(run, question, form, by)
        else:
            _decide(run, question, form, data.get("decision"), by)
    except AgentRunError as refusal:
        form.add_error(None, str(refusal))
        return False
    return not form.errors


def _decide(run: AgentRun, question: Step, form: DecisionForm, decision: str, by: str) -> None:
    if decision not in ("approve", "deny"):
        form.add_error(None, _("Approve or deny."))
        return
    given = form.cleaned_data
    decide(
        run.uuid,
        question.key,
        decision == "approve",
        by=by,
        digest=given["digest"],
        note=given["note"],
    )


def _submit(run: AgentRun, question: Step, form: AnswerForm, by: str) -> None:
    digest = form.cleaned_data["digest"]
    submit_input(run.uuid, question.key, form.answer(), by=by, digest=digest)


def parts(question: Step) -> Iterator[tuple[str, Excerpt]]:
    shown = excerpt(question, "arguments")
    if shown is not None:
        approval = question.kind == StepKind.APPROVAL
        yield (_("arguments of the call") if approval else _("question")), shown
