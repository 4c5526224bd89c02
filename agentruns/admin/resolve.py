"""The page on which a person gives a verdict on an interrupted write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import registry
from ..api import NO_RESULT, resolve
from ..enums import EventKind, Resolution
from ..exceptions import AgentRunError, ResultRefused, UnknownAgent
from ..models import Step
from ..redaction import redacted
from ..verdict import Weight
from .payloads import SHOWN_FENCED, excerpt_columns, harmless
from .proposals import second_person
from .run_page import STEP_PAYLOADS, is_in_doubt, named_excerpts
from .sentences import named, quoted, sentence
from .verdictform import ResolveForm
from .wording import moment, what_is_known, what_it_said

if TYPE_CHECKING:
    from ..deciders import Decider
    from ..models import AgentRun
    from .payloads import Excerpt


@dataclass(frozen=True)
class Doubt:
    """What is shown of an interrupted write before anybody decides on it."""

    run: AgentRun
    step: Step | None
    digest: str
    known: str
    over: str
    second_person: str
    may_act_until: datetime | None
    replayed: str
    sentences: list[str]
    testimony: str
    testimony_note: str
    payloads: list[tuple[str, Excerpt]]
    about_result: str
    schema: str
    verdicts: list[tuple[str, Any]]


def how_it_was_decided(run: AgentRun) -> str:
    """Why there is nothing to decide on any more."""
    event = run.history().filter(kind=EventKind.RESOLVED).order_by("-pk").first()
    said = event.details if event else {}
    if event is None or said.get("verdict") not in Resolution.values:
        return _("There is no write in doubt here any more, and nobody has given a verdict.")
    told = _(
        "There is no write in doubt here any more: %(by)s decided at %(at)s: %(verdict)s. The "
        "reason: %(why)s"
    )
    return sentence(
        told,
        by=named(event.actor),
        at=moment(event.at),
        verdict=Resolution(said["verdict"]).label,
        why=quoted(said.get("why", "")),
    )


def doubt_of(run: AgentRun, reader: Decider, *, payloads: bool) -> Doubt:
    """Read the write in doubt. The digest is read first: what comes later refuses the verdict."""
    digest = run.resolution_digest()
    _effect, attempt = run.standing_fence()
    steps = Step.objects.without_payloads().filter(pk=attempt)
    if payloads:
        steps = steps.annotate(**excerpt_columns(STEP_PAYLOADS, attempt))
    step = steps.first()
    until = run.former_worker_may_act_until()
    over = "" if is_in_doubt(run) else how_it_was_decided(run)
    about_result, schema = result_of(run, step)
    run.pending_step = step
    testimony = what_it_said(run, step) if step is not None else ""
    return Doubt(
        run=run,
        step=step,
        digest=digest,
        known=what_is_known(run, run.read_at),  # type: ignore[attr-defined]
        over=over,
        second_person="" if over else second_person(run, reader),
        may_act_until=until,
        replayed=_replayed(run),
        sentences=_sentences(run, step, until),
        testimony=testimony,
        testimony_note=str(redacted("text", run.testimony_note())) if testimony else "",
        payloads=named_excerpts(step, STEP_PAYLOADS) if payloads and step else [],
        about_result=about_result,
        schema=schema,
        verdicts=_verdicts(run, step, all_of_them=bool(over)),
    )


def result_of(run: AgentRun, step: Step | None) -> tuple[str, str]:
    """What a result is held to: a sentence, and the JSON schema, if it is known."""
    if step is None:
        return "", ""
    values = {"name": named(step.name), "agent": named(run.agent)}
    try:
        schema = registry.result_schema(run.agent, step)
    except UnknownAgent:
        said = _(
            "The agent %(agent)s is not registered in this process, so that nobody here knows what "
            "%(name)s returns: 'it happened' is refused here."
        )
        return sentence(said, **values), ""
    if schema is None:
        said = _(
            "What %(name)s returns is not known here, since nothing declares it: any JSON is taken as "
            "it is, and nobody checks it."
        )
        return sentence(said, **values), ""
    shown = harmless(json.dumps(schema, indent=2, ensure_ascii=False))[:SHOWN_FENCED]
    held = _("The result is held to what %(name)s declares that it returns.")
    return sentence(held, **values), shown


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


def _sentences(run: AgentRun, step: Step | None, until: datetime | None) -> list[str]:
    name = named(step.name) if step else _("the write")
    said = [
        sentence(
            _("If it happened: %(name)s is not executed again. Your result is recorded in its place."),
            name=name,
        ),
        sentence(
            _("If it did not happen: %(name)s is executed again, with the same arguments and the same "
              "idempotency key."),
            name=name,
        ),
        _("If you leave it: nothing is executed; the run stays failed and leaves the desk."),
    ]  # fmt: skip
    if step is not None and step.raised:
        said.append(_after_it_raised(until))
    elif until:
        said.append(
            _("Its former worker may still act until %(at)s: it was not seen to end, and its longest "
              "step may not be over before.") % {"at": moment(until)}
        )  # fmt: skip
    else:
        said.append(
            _("Its former worker counts as gone: it was seen to end, or the longest step that is "
              "allowed would be over.")
        )  # fmt: skip
    if step is not None and not step.late_at and not step.raised:
        said.append(_("Its former worker has reported nothing since."))
    if step is not None and not step.testimony:
        said.append(_("Its destination has said nothing about it."))
    return said


def _after_it_raised(until: datetime | None) -> str:
    """Whether something that a body left behind, which raised, may go on."""
    if until:
        return _(
            "Work that it left behind may still go on until %(at)s: its body raised, and the longest "
            "step that is allowed may not be over before."
        ) % {"at": moment(until)}
    return _(
        "Its body raised; work that it left behind counts as over, since the longest step that is "
        "allowed would be."
    )


def _verdicts(run: AgentRun, step: Step | None, *, all_of_them: bool) -> list[tuple[str, Any]]:
    """What is offered; all of them where what somebody chose is only shown again."""
    executable = type(run).objects.filter(pk=run.pk, request__isnull=False).exists()
    offered = [(Resolution.LEFT.value, _("Leave it: close it as it is"))]
    if executable or all_of_them:
        offered.insert(0, (Resolution.DID_NOT_HAPPEN.value, _("It did not happen: do it again")))
    if (executable and step is not None) or all_of_them:
        offered.insert(0, (Resolution.HAPPENED.value, _("It happened: record this result")))
    return offered


def resolve_form(doubt: Doubt, data: Any = None) -> ResolveForm:
    return ResolveForm(
        data,
        initial={"digest": doubt.digest},
        verdicts=doubt.verdicts,
        may_act_until=doubt.may_act_until,
    )


TAKEN = {
    Weight.TAKES_EFFECT: gettext_lazy("Your verdict was taken."),
    Weight.PROPOSES: gettext_lazy(
        "Your verdict is a proposal: it takes effect when another person gives the same one."
    ),
    Weight.PROPOSES_ANOTHER: gettext_lazy(
        "Your verdict is not the one that was proposed. It is the proposal now: it takes effect when "
        "another person gives the same one."
    ),
}


def give_verdict(run: AgentRun, form: ResolveForm, by: Decider) -> str:
    """Give the verdict of a valid form, and say what it did; a refusal becomes the form's error."""
    given = form.cleaned_data
    verdict = Resolution(given["verdict"])
    try:
        weight = resolve(
            run.uuid,
            verdict,
            by=by,
            reason=given["reason"],
            digest=given["digest"],
            result=given.get("result") if verdict is Resolution.HAPPENED else NO_RESULT,
            worker_may_act_confirmed=given.get("worker_may_act", False),
        )
    except ResultRefused as refusal:
        form.add_error("result", str(refusal))
        return ""
    except AgentRunError as refusal:
        form.add_error(None, str(refusal))
        return ""
    return str(TAKEN[weight])
