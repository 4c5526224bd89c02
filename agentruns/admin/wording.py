"""What is known about a run and what is not, in sentences for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..enums import RunStatus, StepOutcome, TerminationReason, Testimony, ToolEffect

if TYPE_CHECKING:
    from ..models import AgentRun, Step


def moment(at: datetime | None) -> str:
    """A time with its seconds and its zone."""
    return date_format(timezone.localtime(at), "Y-m-d H:i:s T") if at else ""


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


def what_is_known(run: AgentRun, now: datetime) -> str:
    """What is known about this run and what is not. `now` is the database's time."""
    if run.status == RunStatus.RUNNING:
        return _running(run, now)
    if run.termination_reason == TerminationReason.INTERRUPTED_WRITE:
        return _interrupted(run)
    if run.status == RunStatus.FAILED:
        return _failed(run)
    if run.status == RunStatus.QUEUED:
        since = {"at": moment(run.available_at)}
        late = _("It may be taken since %(at)s; no worker has taken it yet.")
        return (late if run.available_at <= now else _("It may be taken from %(at)s on.")) % since
    return _("It is %(status)s; nothing is in doubt.") % {"status": run.get_status_display()}


def write_name(run: AgentRun) -> str:
    step: Step | None = run.pending_step
    return step.name if step is not None else _("a write")


def _running(run: AgentRun, now: datetime) -> str:
    left = (run.lease_expires_at or now) - now
    values = {
        "write": write_name(run),
        "owner": run.claimed_by,
        "started": moment(run.pending_step.started_at if run.pending_step else None),
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
    return said % values + asked


def _interrupted(run: AgentRun) -> str:
    step = run.pending_step
    if step is None:
        return _("It stopped inside a write. Which one is not known: its record is missing.")
    values = {"write": step.name, "started": moment(step.started_at), "owner": step.owner}
    sentences = [
        _(
            "%(write)s was started at %(started)s by %(owner)s and its end was not recorded: whether "
            "it happened is not known."
        )
        % values
    ]
    if step.late_at:
        sentences.append(_late_evidence(step))
    if step.testimony:
        sentences.append(
            _("Its destination, when asked, said: %(said)s.")
            % {"said": Testimony(step.testimony).label}
        )
    if run.resolution:
        closed = {"by": run.resolved_by, "at": moment(run.resolved_at)}
        sentences.append(_("%(by)s closed it as it is at %(at)s.") % closed)
    return " ".join(sentences)


def _late_evidence(step: Step) -> str:
    values = {"at": moment(step.late_at), "error": step.late_error}
    if step.landed_late:
        said = _("Its former worker reported at %(at)s that it landed; nobody has confirmed that.")
    elif step.late_outcome == StepOutcome.EFFECT_NOT_APPLIED:
        said = _("Its former worker reported at %(at)s that nothing happened.")
    elif step.late_outcome == StepOutcome.NOT_STARTED:
        said = _("Its former worker reported at %(at)s that the write did not start: %(error)s.")
    else:
        said = _("Its former worker reported at %(at)s that it raised: %(error)s.")
    return said % values


def _failed(run: AgentRun) -> str:
    error = ": ".join(part for part in (run.error_class, run.error_message) if part)
    values = {"error": error or _("no error was given"), "count": run.requeue_count}
    if run.termination_reason == TerminationReason.RETRIES_EXHAUSTED:
        said = ngettext(
            "It was retried %(count)d time; the last thing known of it is: %(error)s.",
            "It was retried %(count)d times; the last thing known of it is: %(error)s.",
            run.requeue_count,
        )
    else:
        said = _("It ended with an error that a retry does not cure: %(error)s.")
    return f"{said % values} {_certainty(run)}"


def _certainty(run: AgentRun) -> str:
    if run.pending_effect == ToolEffect.IDEMPOTENT_WRITE:
        return _(
            "%(write)s, which may be repeated, may or may not have happened; its other writes are "
            "certain."
        ) % {"write": write_name(run)}
    return _("Its writes are certain: nothing is in doubt.")
