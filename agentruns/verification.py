"""Asking a destination whether a write in doubt happened."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from . import registry
from .conf import conf
from .dispatch import wake_after_commit
from .enums import Resolution, TerminationReason, Testimony
from .exceptions import TransitionRefused
from .guard import from_now
from .models import AgentRun, Step
from .registry import Answer, Verifier, WriteInDoubt

logger = logging.getLogger(__name__)


def take_due(limit: int) -> list[UUID]:
    """Runs interrupted in a write whose destination is to be asked now; they are marked as woken.

    As runs that are due, they are woken again after a pause that doubles, should nobody have come.
    """
    verifiable = Q()
    for agent in registry.agents():
        if agent.verifiers:
            verifiable |= Q(agent=agent.name, pending_step__name__in=sorted(agent.verifiers))
    if not verifiable:
        return []
    verifiable &= Q(pending_step__in=Step.objects.due_for_asking())
    taken: list[UUID] = AgentRun.objects.take_unasked(verifiable, limit)
    return taken


def is_to_be_asked(run: AgentRun, step: Step) -> bool:
    """Whether the destination of this write in doubt has not been asked, and a worker will ask it."""
    if run.resolution or step.testimony or registry.verifier(run.agent, step.name) is None:
        return False
    return step.asked_count < conf.VERIFY_ATTEMPTS


def verify(uuid: UUID) -> Testimony | None:
    """Ask the destination of a run's interrupted write, and act on what it says.

    'Landed' records the result and lets the run go on. 'Not landed' is written down for a person,
    since the former worker may still act; where the destination is declared final it lets the write
    be executed again. 'Unknown' is asked again, with backoff, VERIFY_ATTEMPTS times in all. Returns
    what it said; None where there was nothing to ask.
    """
    asking = _take(uuid)
    if asking is None:
        return None
    answer = _ask(asking.run, asking.step, asking.verifier)
    _act(asking, answer)
    return answer.testimony


@dataclass(frozen=True, slots=True)
class Asking:
    """A question that is put to a destination, and the state of the run in which it is put.

    `too_early`: the former worker may still act, so that a 'no' says nothing about what comes.
    """

    run: AgentRun
    step: Step
    verifier: Verifier
    digest: str
    too_early: bool


def _take(uuid: UUID) -> Asking | None:
    """Count this asking before it is made, so that two workers don't make it together."""
    with transaction.atomic(using=conf.DATABASE):
        run = AgentRun.objects.unresolved().filter(uuid=uuid).first()
        if run is None:
            return None
        row = AgentRun.objects.lock_one(pk=run.pk)
        if row.termination_reason != TerminationReason.INTERRUPTED_WRITE:
            return None
        _effect, attempt = row.standing_fence()
        step = Step.objects.due_for_asking().filter(pk=attempt).first()
        verifier = registry.verifier(row.agent, step.name) if step else None
        if row.resolution or step is None or verifier is None:
            return None
        pause = from_now(conf.VERIFY_BACKOFF_SECONDS * 2**step.asked_count)
        Step.objects.filter(pk=step.pk).update(asked_count=F("asked_count") + 1, ask_after=pause)
        too_early = not verifier.is_final and row.former_worker_may_act()
        return Asking(run, step, verifier, row.resolution_digest(), too_early)


def _ask(run: AgentRun, step: Step, verifier: Verifier) -> Answer:
    try:
        doubt = WriteInDoubt(
            run=run.uuid,
            step=step.name,
            idempotency_key=step.idempotency_key,
            arguments=None if step.arguments is None else step.arguments.value,
            started_at=step.started_at,
        )
        answer = verifier.ask(doubt)
        if answer.testimony is not Testimony.LANDED:
            return answer
        return replace(answer, result=registry.journaled_result(run.agent, step, answer.result))
    except Exception as error:
        # What the destination said is in the traceback, too.
        logger.error(
            "the verification of run %s failed: %s",
            run.uuid,
            type(error).__name__,
            exc_info=not conf.REDACT,
        )
        return Answer(Testimony.UNKNOWN, note=f"{type(error).__name__}: {error}")


def _act(asking: Asking, answer: Answer) -> None:
    """Write the testimony down and, if nothing has changed since the asking, act on it."""
    step, verifier = asking.step, asking.verifier
    verdict = {
        Testimony.LANDED: Resolution.HAPPENED,
        Testimony.NOT_LANDED: Resolution.DID_NOT_HAPPEN if verifier.is_final else None,
    }.get(answer.testimony)
    with transaction.atomic(using=conf.DATABASE):
        row = AgentRun.objects.lock_one(pk=asking.run.pk)
        unchanged = row.resolution_digest() == asking.digest
        if asking.too_early and answer.testimony is Testimony.NOT_LANDED:
            _ask_again_when_the_worker_is_gone(row, step, answer)
            return
        row.add_testimony(step, answer.testimony, actor=f"verify:{step.name}", note=answer.note)
        if verdict is not None and unchanged:
            _give_verdict(row, step, verifier, verdict, answer)


def _ask_again_when_the_worker_is_gone(row: AgentRun, step: Step, answer: Answer) -> None:
    """Write a 'no' down as one that came too early; it spends no asking."""
    Step.objects.filter(pk=step.pk).update(
        asked_count=F("asked_count") - 1, ask_after=from_now(conf.MAX_STEP_SECONDS)
    )
    row.add_testimony(step, Testimony.TOO_EARLY, actor=f"verify:{step.name}", note=answer.note)


def _give_verdict(
    row: AgentRun, step: Step, verifier: Verifier, verdict: Resolution, answer: Answer
) -> None:
    try:
        row.resolve(
            verdict,
            by=f"verify:{step.name}"[:200],
            reason=f"the destination said: {answer.testimony.label}",
            digest=row.resolution_digest(),
            result=answer.result if verdict is Resolution.HAPPENED else None,
            # A final destination carries out the former request no more, whoever still acts.
            worker_may_act_confirmed=verifier.is_final,
            by_destination=True,
        )
    except TransitionRefused as refusal:
        logger.warning("run %s: %s", row.uuid, refusal)
    else:
        wake_after_commit(row.uuid)
