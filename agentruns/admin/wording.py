"""What is known about a run and what is not, in sentences for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import TextChoices
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import registry
from ..enums import RunStatus, StepOutcome, TerminationReason, Testimony, ToolEffect
from ..models.operator import HELD
from ..verification import is_to_be_asked
from .sentences import joined, named, quoted, sentence

if TYPE_CHECKING:
    from ..models import AgentRun, Step


def moment(at: datetime | None) -> str:
    """A time with its seconds and its zone."""
    return date_format(timezone.localtime(at), "Y-m-d H:i:s T") if at else ""


def label_of(choices: type[TextChoices], value: str) -> str:
    """The label of a stored value; the value itself where somebody has damaged it."""
    known = value in choices.values
    return str(choices(value).label) if known else value


def step_in_flight(run: AgentRun) -> Step | None:
    """The attempt that the fence names; None where it names none, or one that is gone."""
    try:
        step: Step | None = run.pending_step
    except ObjectDoesNotExist:
        return None
    return step


def duration(length: timedelta) -> str:
    """A length of time in one or two units; a person compares these at a glance."""
    seconds = int(abs(length.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours % 24}
    if hours:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    if minutes:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": seconds % 60}
    return _("%(seconds)d s") % {"seconds": seconds}


def short_duration(seconds: float) -> str:
    """A length of time that may be shorter than a second."""
    if seconds < 1:
        return _("%(count)d ms") % {"count": round(seconds * 1000)}
    if seconds < 60:
        return _("%(count)s s") % {"count": number_format(seconds, 1)}
    return duration(timedelta(seconds=seconds))


def took(step: Step) -> str:
    """How long a step took; nobody knows it of one whose end was not seen, or was decided."""
    if step.ended_at is None:
        return _("not known")
    return short_duration((step.ended_at - step.started_at).total_seconds())


def what_is_known(run: AgentRun, now: datetime) -> str:
    """What is known about this run and what is not. `now` is the database's time."""
    if run.status == RunStatus.RUNNING:
        return _running(run, now)
    if run.termination_reason == TerminationReason.INTERRUPTED_WRITE:
        return _interrupted(run)
    if run.status == RunStatus.FAILED:
        return _failed(run)
    if run.status == RunStatus.QUEUED:
        return _queued(run, now)
    return _("It is %(status)s; nothing is in doubt.") % {"status": run.get_status_display()}


def write_name(run: AgentRun) -> str:
    step = step_in_flight(run)
    return step.name if step is not None else _("a write")


def _queued(run: AgentRun, now: datetime) -> str:
    since = {"at": moment(run.available_at)}
    if run.available_at > now:
        return _("It may be taken from %(at)s on.") % since
    said = _("It may be taken since %(at)s; no worker has taken it yet.") % since
    return joined((said, who_serves(run)))


def who_serves(run: AgentRun) -> str:
    """What this process has of a queued run's agent, where that is not what the run needs."""
    served = registry.served().get(run.agent)
    if served == run.agent_version:
        return ""
    if served is None:
        said = _("This process does not have its agent; what the workers have is not known here.")
    else:
        said = _(
            "It needs version '%(wanted)s' of its agent; this process has version '%(served)s'. What "
            "the workers have is not known here."
        )
    return sentence(said, wanted=named(run.agent_version), served=named(served))


def _running(run: AgentRun, now: datetime) -> str:
    left = (run.lease_expires_at or now) - now
    step = step_in_flight(run)
    values = {
        "write": named(write_name(run)),
        "owner": named(run.claimed_by),
        "started": moment(step.started_at if step else None),
        "left": duration(left),
    }
    if not run.pending_effect:
        said = _("%(owner)s executes it; no write is in flight.")
    elif left < timedelta(0):
        said = _(
            "%(write)s was started at %(started)s by %(owner)s, whose lease ran out %(left)s ago: "
            "the next sweep decides, unless the worker comes back first."
        )
    else:
        said = _(
            "%(owner)s is inside %(write)s since %(started)s, with %(left)s of its lease left; "
            "whether it has happened yet is not known."
        )
    asked = _(" A cancel was asked for.") if run.cancel_requested_at else ""
    return sentence(said, **values) + sentence(asked)


def _interrupted(run: AgentRun) -> str:
    step = step_in_flight(run)
    if step is None:
        return _("It stopped inside a write. Which one is not known: its record is missing.")
    sentences = [_how_it_stopped(step)]
    if step.late_at:
        sentences.append(_late_evidence(step))
    if step.testimony:
        sentences.append(
            sentence(
                _("Its destination, when asked, said: %(said)s."), said=what_it_said(run, step)
            )
        )
    if is_to_be_asked(run, step):
        sentences.append(_("Its destination will be asked by the next worker that is free."))
    if run.resolution:
        closed = {"by": named(run.resolved_by), "at": moment(run.resolved_at)}
        sentences.append(sentence(_("%(by)s closed it as it is at %(at)s."), **closed))
    return joined(sentences)


def _how_it_stopped(step: Step) -> str:
    values = {
        "write": named(step.name),
        "started": moment(step.started_at),
        "owner": named(step.owner),
        "error": quoted(step.error),
    }
    if not step.raised:
        said = _(
            "%(write)s was started at %(started)s by %(owner)s and its end was not recorded: whether "
            "it happened is not known."
        )
    else:
        said = _(
            "%(write)s was started at %(started)s by %(owner)s and raised %(error)s; whether it "
            "happened, and whether work that it left behind still goes on, is not known."
        )
    return sentence(said, **values)


def what_it_said(run: AgentRun, step: Step) -> str:
    """What a write's destination said when it was asked, and when it is asked again; '' if nothing."""
    if not step.testimony:
        return ""
    said = label_of(Testimony, step.testimony)
    if step.asked_again_at is None or step.pk != run.pending_step_id or run.resolution:
        return said
    values = {"said": said, "at": moment(step.asked_again_at)}
    return _("%(said)s; it is asked again from %(at)s on") % values


def _late_evidence(step: Step) -> str:
    values = {"at": moment(step.late_at), "error": quoted(step.late_error)}
    if step.landed_late:
        said = _("Its former worker reported at %(at)s that it landed; nobody has confirmed that.")
    elif step.late_outcome == StepOutcome.EFFECT_NOT_APPLIED:
        said = _("Its former worker reported at %(at)s that nothing happened.")
    elif step.late_outcome == StepOutcome.NOT_STARTED:
        said = _("Its former worker reported at %(at)s that the write did not start: %(error)s.")
    else:
        said = _("Its former worker reported at %(at)s that it raised: %(error)s.")
    return sentence(said, **values)


def _failed(run: AgentRun) -> str:
    error = quoted(run.error_text) if run.error_text else _("no error was given")
    if run.error_class == HELD:
        said = _("Nobody knows here what it did after this database was written: %(error)s.")
        return sentence(said, error=error)
    if run.termination_reason == TerminationReason.RETRIES_EXHAUSTED:
        said = ngettext(
            "It was retried %(count)d time; the last thing known of it is: %(error)s.",
            "It was retried %(count)d times; the last thing known of it is: %(error)s.",
            run.requeue_count,
        )
    else:
        said = _("It ended with an error that a retry does not cure: %(error)s.")
    told = sentence(said, error=error, count=run.requeue_count)
    return joined((told, _certainty(run)))


def _certainty(run: AgentRun) -> str:
    if run.pending_effect == ToolEffect.IDEMPOTENT_WRITE:
        said = _(
            "%(write)s, which may be repeated, may or may not have happened; its other writes are "
            "certain."
        )
        return sentence(said, write=named(write_name(run)))
    return _("Its writes are certain: nothing is in doubt.")
