"""A run's life, told by the transitions themselves, with its times moved to where the story has them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Self

from django.db import transaction
from django.utils import timezone

from agentruns.enums import StepKind, StepOutcome, ToolEffect
from agentruns.failures import Failure
from agentruns.fields import Payload
from agentruns.guard import Claim
from agentruns.models import AgentRun, Event, Step, StepCall
from agentruns.models.step import Ending

READ = ToolEffect.READ_ONLY
WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
MODEL = "gpt-5.2"


class Life:
    """One run, from `ago` on; each verb is what happens next, and takes the time that it is given."""

    def __init__(self, agent: str, request: Any, ago: timedelta, **options: Any) -> None:
        self.at = timezone.now() - ago
        self.run: AgentRun = AgentRun.objects.enqueue(agent, Payload.of(request), **options)[0]
        self.claim: Claim | None = None
        self.rounds = self.last_event = 0
        self._change(created_at=self.at, available_at=self.at, woken_at=self.at)
        self._happened()

    def taken(self, worker: str, after: float = 0.4) -> Self:
        self._pass(after)
        self._change(available_at=self.at)
        taken = AgentRun.objects.claim(self.run.uuid, worker)
        assert taken is not None, f"{self.run} could not be claimed"
        self.run, self.claim = taken
        if self.run.claim_epoch == 1:
            self._change(started_at=self.at)
        return self._happened()

    def thought(self, seconds: float) -> Self:
        """A model request."""
        self.rounds += 1
        call = self._call(f"model:{self.rounds}", MODEL, READ, None, StepKind.MODEL)
        return self._recorded(call, {"parts": [{"text": "..."}]}, seconds)

    def read(self, name: str, arguments: Any, result: Any, seconds: float) -> Self:
        call = self._call(self._tool_key(), name, READ, arguments, StepKind.TOOL)
        return self._recorded(call, result, seconds)

    def wrote(self, name: str, arguments: Any, result: Any, seconds: float) -> Self:
        began, step, call = self.at, *self._stamp(name, arguments)
        self._pass(seconds)
        self.run.record_step(
            self._mine, call, Ending(StepOutcome.RETURNED, Payload.of(result)), step
        )
        Step.objects.filter(pk=step.pk).update(started_at=began, ended_at=self.at)
        return self._happened()

    def writing(self, name: str, arguments: Any) -> Self:
        """Begin a write that does not end here."""
        step, _call = self._stamp(name, arguments)
        Step.objects.filter(pk=step.pk).update(started_at=self.at)
        return self

    def asked(self, kind: StepKind, name: str, arguments: Any) -> Self:
        call = self._call(f"{kind}:{self._tool_key()}", name, READ, arguments, kind)
        self.run.ask(self._mine, call)
        self._date_steps(self.at, None)
        self.run.suspend(self._mine)
        return self._happened()

    def completed(self, output: Any) -> Self:
        self.run.complete(self._mine, Payload.of(output), Payload.of({"requests": self.rounds}))
        return self._settled()

    def failed(self, failure: Failure, error: BaseException) -> Self:
        self.run.recover(self._mine, failure, error)
        return self._settled()

    def lost(self, after: float = 75) -> Self:
        """The worker dies; the reaper finds the run when its lease has run out."""
        self._pass(after)
        self._change(lease_expires_at=self.at - timedelta(seconds=15))
        with transaction.atomic():
            AgentRun.objects.lock_stale([self.run.pk])[0].reap()
        return self._settled()

    def reported_late(self, ending: Ending, after: float) -> Self:
        self._pass(after)
        step = Step.objects.filter(run=self.run).latest("pk")
        self.run.add_late_evidence(self._mine, step, ending)
        Step.objects.filter(pk=step.pk).update(late_at=self.at)
        return self._happened()

    @property
    def _mine(self) -> Claim:
        assert self.claim is not None
        return self.claim

    def _tool_key(self) -> str:
        return f"tool:{self.rounds}:call_{Step.objects.filter(run=self.run).count()}"

    def _call(
        self, key: str, name: str, effect: ToolEffect, arguments: Any, kind: StepKind
    ) -> StepCall:
        stored = None if arguments is None else Payload.of(arguments)
        digest = stored.digest if stored else ""
        return StepCall(key, name, kind, effect, stored, digest, self.rounds)

    def _stamp(self, name: str, arguments: Any) -> tuple[Step, StepCall]:
        call = self._call(self._tool_key(), name, WRITE, arguments, StepKind.TOOL)
        return self.run.mark_pending_effect(self._mine, call), call

    def _recorded(self, call: StepCall, result: Any, seconds: float) -> Self:
        began = self.at
        self._pass(seconds)
        self.run.record_step(self._mine, call, Ending(StepOutcome.RETURNED, Payload.of(result)))
        self._date_steps(began, self.at)
        return self._happened()

    def _date_steps(self, began: datetime, ended: datetime | None) -> None:
        newest = Step.objects.filter(run=self.run).latest("pk")
        Step.objects.filter(pk=newest.pk).update(started_at=began, ended_at=ended)

    def _settled(self) -> Self:
        if AgentRun.objects.settled().filter(pk=self.run.pk).exists():
            self._change(finished_at=self.at)
        return self._happened()

    def _pass(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def _change(self, **columns: Any) -> None:
        AgentRun.objects.filter(pk=self.run.pk).write_guarded(**columns)

    def _happened(self) -> Self:
        events = Event.objects.filter(run=self.run, pk__gt=self.last_event)
        events.update(at=self.at)
        self.last_event = Event.objects.filter(run=self.run).latest("pk").pk
        return self
