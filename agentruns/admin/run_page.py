from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from ..enums import RunStatus, TerminationReason
from ..models import AgentRun
from ..redaction import redacted
from ..slots import slots_of
from .payloads import Excerpt, excerpt, excerpt_columns
from .proposals import second_person
from .timeline import ASKED, Timeline, timeline, title_of, waits
from .wording import moment, took, what_is_known, what_it_said

if TYPE_CHECKING:
    from ..deciders import Decider
    from ..models import Event, Step

SHOWN_STEPS = 100
SHOWN_EVENTS = 200
RUN_PAYLOADS = ("request", "output", "usage")
STEP_PAYLOADS = ("arguments", "result", "late_result")


@dataclass(frozen=True)
class StepRow:
    step: Step
    title: str
    # Whether the step asks a person, and is still waiting for the answer.
    asks: bool
    waits: bool
    fenced: bool
    started: str
    took: str
    testimony: str
    payloads: list[tuple[str, Excerpt]]


@dataclass(frozen=True)
class EventRow:
    event: Event
    at: str
    details: list[tuple[str, str]]


@dataclass(frozen=True)
class RunPage:
    """What a run's page shows; the oldest steps and events are left out where there are many."""

    run: AgentRun
    known: str
    second_person: str
    facts: list[tuple[str, str]]
    may_see_payloads: bool
    payloads: list[tuple[str, Excerpt]]
    steps: list[StepRow]
    more_steps: bool
    events: list[EventRow]
    more_events: bool
    timeline: Timeline | None


def run_page(run: AgentRun, reader: Decider, *, payloads: bool) -> RunPage:
    """Read a run's page: as many queries for any run's size; no payload unless allowed."""
    steps, more_steps = read_steps(run, payloads)
    events = list(run.history().order_by("-at", "-pk")[: SHOWN_EVENTS + 1])
    return RunPage(
        run=run,
        known=what_is_known(run, run.read_at),  # type: ignore[attr-defined]
        second_person=second_person(run, reader) if is_in_doubt(run) else "",
        facts=facts(run),
        may_see_payloads=payloads,
        payloads=run_payloads(run) if payloads else [],
        steps=steps,
        more_steps=more_steps,
        events=[event_row(event) for event in reversed(events[:SHOWN_EVENTS])],
        more_events=len(events) > SHOWN_EVENTS,
        timeline=timeline(
            run,
            [row.step for row in steps],
            reversed(events[:SHOWN_EVENTS]),
            run.read_at,  # type: ignore[attr-defined]
        ),
    )


def is_in_doubt(run: AgentRun) -> bool:
    return run.termination_reason == TerminationReason.INTERRUPTED_WRITE


def facts(run: AgentRun) -> list[tuple[str, str]]:
    """The summary: what is set, in the order in which a person asks."""
    given = [
        (_("status"), run.get_status_display()),
        (_("reason"), run.get_termination_reason_display()),
        (_("waits for"), free_slot(run)),
        (_("error"), run.error_text),
        (_("fence"), run.get_pending_effect_display() if run.pending_effect else ""),
        (_("verdict"), run.get_resolution_display() if run.resolution else ""),
        (_("verdict by"), " ".join(filter(None, (run.resolved_by, moment(run.resolved_at))))),
        (_("cancel asked"), moment(run.cancel_requested_at)),
        (_("owner"), run.claimed_by),
        (_("lease ends"), moment(run.lease_expires_at)),
        (_("segments so far"), str(run.claim_epoch)),
        (_("retries"), str(run.requeue_count)),
        (_("agent"), " ".join(filter(None, (run.agent, run.agent_version)))),
        (_("mode"), run.get_mode_display()),
        (_("requested by"), run.requested_by),
        (_("correlation id"), run.correlation_id),
        (_("idempotency key"), run.idempotency_key or ""),
        (_("created"), moment(run.created_at)),
        (_("due"), moment(run.available_at) if run.status == RunStatus.QUEUED else ""),
        (_("last woken"), moment(run.woken_at)),
        (_("started"), moment(run.started_at)),
        (_("finished"), moment(run.finished_at)),
    ]
    return [(name, value) for name, value in given if value]


def free_slot(run: AgentRun) -> str:
    """What a run in line waits for; of an agent that is not known here, without its number."""
    if run.status != RunStatus.QUEUED or not run.waits_for_slot:
        return ""
    slots = slots_of(run.agent)
    if slots is None:
        return _("a free slot")
    shown = {"running": slots.running, "most": slots.most}
    return _("a free slot: %(running)s of %(most)s running") % shown


def run_payloads(run: AgentRun) -> list[tuple[str, Excerpt]]:
    rows = AgentRun.objects.without_payloads().annotate(**excerpt_columns(RUN_PAYLOADS))
    return named_excerpts(rows.get(pk=run.pk), RUN_PAYLOADS)


def named_excerpts(row: Any, names: tuple[str, ...]) -> list[tuple[str, Excerpt]]:
    labels = {
        "request": _("request"),
        "output": _("output"),
        "usage": _("usage"),
        "arguments": _("arguments"),
        "result": _("result"),
        "late_result": _("result reported late"),
    }
    read = [(labels[name], excerpt(row, name)) for name in names]
    return [(label, shown) for label, shown in read if shown is not None]


def read_steps(run: AgentRun, payloads: bool) -> tuple[list[StepRow], bool]:
    # By the time, not by the primary key alone: PostgreSQL would read that for as long as it takes.
    steps = run.journal().without_payloads().order_by("-started_at", "-pk")
    if payloads:
        steps = steps.annotate(**excerpt_columns(STEP_PAYLOADS, run.pending_step_id))
    found = list(steps[: SHOWN_STEPS + 1])
    rows = [step_row(run, step, payloads) for step in reversed(found[:SHOWN_STEPS])]
    return rows, len(found) > SHOWN_STEPS


def step_row(run: AgentRun, step: Step, payloads: bool) -> StepRow:
    return StepRow(
        step=step,
        title=title_of(step),
        asks=step.kind in ASKED,
        waits=waits(run, step),
        fenced=bool(run.pending_effect) and step.pk == run.pending_step_id,
        started=moment(step.started_at),
        took=took(step),
        testimony=what_it_said(run, step),
        payloads=named_excerpts(step, STEP_PAYLOADS) if payloads else [],
    )


def event_row(event: Event) -> EventRow:
    said = [(k, str(v)) for k, v in redacted_details(event).items() if v not in ("", None)]
    return EventRow(event, moment(event.at), said)


def redacted_details(event: Event) -> dict[str, Any]:
    """What an event says, for a person's eyes."""
    shown = redacted("event", event.details)
    return shown if isinstance(shown, dict) else {"": shown}
