"""The page on which a person gives a verdict on an interrupted write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..api import resolve
from ..enums import Resolution, TerminationReason
from ..exceptions import AgentRunError
from ..models import Step
from .jsonfield import JsonText
from .payloads import excerpt_columns
from .run_page import STEP_PAYLOADS, named_excerpts
from .wording import what_is_known

if TYPE_CHECKING:
    from ..models import AgentRun
    from .payloads import Excerpt


class ResolveForm(forms.Form):
    """A verdict, its reason, and the digest of what was shown when it was given."""

    digest = forms.CharField(widget=forms.HiddenInput)
    verdict = forms.ChoiceField(label=gettext_lazy("Verdict"), widget=forms.RadioSelect)
    result = JsonText(
        label=gettext_lazy("Result"),
        required=False,
        help_text=gettext_lazy(
            "For 'it happened': what the step would have returned, as JSON. A text stands in double "
            "quotes; null if it returned nothing."
        ),
    )
    worker_may_act = forms.BooleanField(
        label=gettext_lazy("I know that the former worker may still perform this write"),
        required=False,
        help_text=gettext_lazy(
            "For 'it did not happen': if it does, the write happens twice. Confirm only if its "
            "process is known to be gone, or if twice is acceptable."
        ),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=gettext_lazy("How you know. It is kept in the run's history."),
    )

    def __init__(self, *args: Any, verdicts: list[tuple[str, Any]], may_act: bool, **options: Any):
        super().__init__(*args, **options)
        chosen = self.fields["verdict"]
        assert isinstance(chosen, forms.ChoiceField)  # noqa: S101
        chosen.choices = verdicts
        if not may_act:
            del self.fields["worker_may_act"]
        if Resolution.HAPPENED not in dict(verdicts):
            del self.fields["result"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        verdict = given.get("verdict")
        if verdict == Resolution.HAPPENED and not self.data.get("result", "").strip():
            self.add_error("result", _("'It happened' needs the result that it returned."))
        asked = "worker_may_act" in self.fields and not given.get("worker_may_act")
        if verdict == Resolution.DID_NOT_HAPPEN and asked:
            said = _("Confirm this, or wait until the former worker is known to be gone.")
            self.add_error("worker_may_act", said)
        return given


@dataclass(frozen=True)
class Doubt:
    """What is shown of an interrupted write before anybody decides on it."""

    run: AgentRun
    step: Step | None
    digest: str
    known: str
    may_act: bool
    replayed: str
    sentences: list[str]
    payloads: list[tuple[str, Excerpt]]
    verdicts: list[tuple[str, Any]]


def is_in_doubt(run: AgentRun) -> bool:
    return run.termination_reason == TerminationReason.INTERRUPTED_WRITE


def doubt_of(run: AgentRun, *, payloads: bool) -> Doubt:
    """Read the write in doubt. The digest is read first: what comes later refuses the verdict."""
    digest = run.resolution_digest()
    _effect, attempt = run.standing_fence()
    steps = Step.objects.without_payloads().filter(pk=attempt)
    if payloads:
        steps = steps.annotate(**excerpt_columns(STEP_PAYLOADS, attempt))
    step = steps.first()
    may_act = run.former_worker_may_act()
    run.pending_step = step
    return Doubt(
        run=run,
        step=step,
        digest=digest,
        known=what_is_known(run, run.read_at),  # type: ignore[attr-defined]
        may_act=may_act,
        replayed=_replayed(run),
        sentences=_sentences(run, step, may_act),
        payloads=named_excerpts(step, STEP_PAYLOADS) if payloads and step else [],
        verdicts=_verdicts(run, step),
    )


def _replayed(run: AgentRun) -> str:
    count = run.journal().recorded().count()
    said = ngettext(
        "%(count)d recorded step is replayed from the journal; neither a model nor a tool is called "
        "again for it.",
        "%(count)d recorded steps are replayed from the journal; neither a model nor a tool is "
        "called again for them.",
        count,
    )
    return said % {"count": count}


def _sentences(run: AgentRun, step: Step | None, may_act: bool) -> list[str]:
    name = step.name if step else _("the write")
    said = [
        _("If it happened: %(name)s is not executed again. Your result is recorded in its place.")
        % {"name": name},
        _("If it did not happen: %(name)s is executed again, with the same arguments and the same "
          "idempotency key.") % {"name": name},
        _("If you leave it: nothing is executed; the run stays failed and leaves the desk."),
    ]  # fmt: skip
    if may_act:
        said.append(
            _("Its former worker may still act: it was not seen to end, and its longest step may "
              "not be over yet.")
        )  # fmt: skip
    else:
        said.append(_("Its former worker is gone: it can't act any more."))
    if step is not None and not step.late_at:
        said.append(_("Its former worker has reported nothing since."))
    if step is not None and not step.testimony:
        said.append(_("Its destination has said nothing about it."))
    return said


def _verdicts(run: AgentRun, step: Step | None) -> list[tuple[str, Any]]:
    executable = type(run).objects.filter(pk=run.pk, request__isnull=False).exists()
    offered = [(Resolution.LEFT.value, _("Leave it: close it as it is"))]
    if executable:
        offered.insert(0, (Resolution.DID_NOT_HAPPEN.value, _("It did not happen: do it again")))
    if executable and step is not None:
        offered.insert(0, (Resolution.HAPPENED.value, _("It happened: record this result")))
    return offered


def resolve_form(doubt: Doubt, data: Any = None) -> ResolveForm:
    return ResolveForm(
        data,
        initial={"digest": doubt.digest},
        verdicts=doubt.verdicts,
        may_act=doubt.may_act,
    )


def give_verdict(run: AgentRun, form: ResolveForm, by: str) -> bool:
    """Give the verdict of a valid form; a refusal becomes an error of the form."""
    given = form.cleaned_data
    try:
        resolve(
            run.uuid,
            Resolution(given["verdict"]),
            by=by,
            reason=given["reason"],
            digest=given["digest"],
            result=given.get("result"),
            worker_may_act_confirmed=given.get("worker_may_act", False),
        )
    except AgentRunError as refusal:
        form.add_error(None, str(refusal))
        return False
    return True
