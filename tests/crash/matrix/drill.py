"""One cell: bring a run to its situation, strike a worker, and see what becomes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models.functions import Now

from agentruns import api
from agentruns.enums import WAITING, Resolution, ToolEffect
from agentruns.models import AgentRun, Step
from agentruns.reaper import sweep
from agentruns.tasks import execute
from agentruns.testing.boundaries import Point
from agentruns.testing.client import RecorderClient
from agentruns.testing.exercise import answer
from agentruns.testing.lanes import Lane
from agentruns.testing.reporting import report_to
from agentruns.testing.settling import LeaseClock, run_until_settled
from agentruns.testing.workers import Strike, Watch, Worker, start_worker
from tests.project import cell_agent
from tests.servers.waiting import wait_until

from .cells import OF_THE_STEP, VERIFIES, Cell, Signal, Situation
from .judging import broken_in

WORKER_SECONDS = 120
# Nothing but a worker that is stopped waits for its lease.
LONG = {"LEASE_SECONDS": 120.0, "HEARTBEAT_SECONDS": 10.0, "MAX_STEP_SECONDS": 600.0}
SHORT = {"LEASE_SECONDS": 2.0, "HEARTBEAT_SECONDS": 0.4, "MAX_STEP_SECONDS": 600.0}
# Where other tests run beside it: they may pause a worker for seconds.
PATIENT = {**SHORT, "LEASE_SECONDS": 10.0}

ONCE = ToolEffect.NON_IDEMPOTENT_WRITE


@dataclass
class Result:
    cell: Cell
    outcome: str = ""
    broken: list[str] = field(default_factory=list)
    said: str = ""


def drill(lane: Lane, cell: Cell, *, patient: bool = True) -> Result:
    short = PATIENT if patient else SHORT
    settings.AGENTRUNS = {
        **settings.AGENTRUNS,
        **(short if cell.signal is Signal.STOP else LONG),
    }
    return Drill(lane, cell).carry_through()


class Drill:
    def __init__(self, lane: Lane, cell: Cell) -> None:
        self.lane = lane
        self.cell = cell
        self.result = Result(cell)
        self.log = lane.folder / f"{cell.effect}-{cell.point}-{cell.situation}-{cell.signal}.log"
        self.uuid = UUID(int=0)

    def carry_through(self) -> Result:
        try:
            self.prepare()
            self.strike()
            self.settle()
            self.judge()
        except Exception as error:
            self.result.broken.append(f"{type(error).__name__}: {error}")
        if self.result.broken and self.log.exists():
            self.result.said = self.log.read_text(errors="replace")[-4000:]
        return self.result

    # The situation.

    @property
    def in_doubt(self) -> bool:
        return self.cell.situation in (Situation.RESOLVED, Situation.VERIFIED)

    @property
    def request(self) -> dict[str, Any]:
        """Where the write in doubt is not the cell's step itself, it is one before it."""
        return {
            "effect": str(self.cell.effect),
            "approval": self.cell.situation is Situation.APPROVED,
            "earlier": self.in_doubt and self.cell.effect is not ONCE,
        }

    def prepare(self) -> None:
        if self.cell.situation is Situation.SYNCHRONOUS:
            return
        self.uuid = api.enqueue(cell_agent.CELL, self.request).uuid
        if self.cell.situation is Situation.APPROVED and not self.is_of_the_question:
            self.work()
            waits = api.status(self.uuid).status in WAITING
            self.need(waits, "there was nothing to approve")
            answer(self.uuid, {})
        if self.in_doubt:
            self.interrupt()
        if self.cell.situation is Situation.RESOLVED:
            self.resolve()
        if self.cell.situation is Situation.VERIFIED and self.cell.point not in VERIFIES:
            self.work()

    @property
    def is_of_the_question(self) -> bool:
        return self.cell.point.value.endswith(("_ask", "_park"))

    def interrupt(self) -> None:
        """Have a worker die inside a write: of the cell's step before, of another after its body."""
        itself = self.cell.effect is ONCE
        self.work(
            Strike(Point.AFTER_STAMP, "step") if itself else Strike(Point.BEFORE_RECORD, "earlier")
        )
        LeaseClock(self.uuid).run_out()
        sweep()
        self.need(api.status(self.uuid).uncertain, "the run was not dead-lettered")

    def resolve(self) -> None:
        """Say, as a person who looked, what is true."""
        happened = self.cell.effect is not ONCE
        api.resolve(
            self.uuid,
            Resolution.HAPPENED if happened else Resolution.DID_NOT_HAPPEN,
            by="ann",
            reason="the destination's log says so",
            digest=self.row.resolution_digest(),
            worker_may_act_confirmed=True,
            **({"result": {"done": "earlier"}} if happened else {}),
        )

    # The strike.

    def strike(self) -> None:
        strike = Strike(self.cell.point, self.struck_step, signal=self.cell.signal.number)
        synchronous = self.cell.situation is Situation.SYNCHRONOUS
        function = partial(api.run, cell_agent.CELL, self.request) if synchronous else None
        if self.cell.signal is Signal.STOP:
            self.stop(strike, function)
        else:
            self.work(strike, function)
            self.find_synchronous_run()

    @property
    def struck_step(self) -> str:
        if self.is_of_the_question:
            return "step?" if self.cell.point.value.endswith("_ask") else ""
        return "step" if self.cell.point in OF_THE_STEP else ""

    def find_synchronous_run(self) -> None:
        if self.cell.situation is Situation.SYNCHRONOUS:
            self.uuid = AgentRun.objects.latest("pk").uuid

    def stop(self, strike: Strike, function: Callable[[], object] | None) -> None:
        """Stop a worker past its lease, let another take over, and have the first go on."""
        worker = self.start(strike, function)
        status = worker.wait(WORKER_SECONDS)
        self.need(status is not None and os.WIFSTOPPED(status), "the worker was not stopped")
        try:
            self.find_synchronous_run()
            held = AgentRun.objects.filter(uuid=self.uuid, lease_expires_at__gte=Now())
            wait_until(lambda: not held.exists(), what="the end of the lease")
            sweep()
            if not self.cell.keeps_its_run:
                self.settle()
        finally:
            os.kill(worker.pid, signal.SIGCONT)
            if worker.wait(WORKER_SECONDS) is None:
                worker.kill()
                self.result.broken.append("the worker that was stopped did not end")

    def start(
        self, strike: Strike | None = None, function: Callable[[], object] | None = None
    ) -> Worker:
        recorder = self.lane.recorder
        act = partial(
            be_worker, recorder, self.cell.situation, function or partial(execute, str(self.uuid))
        )
        return start_worker(act, self.log, Watch(recorder, strike))

    def work(
        self, strike: Strike | None = None, function: Callable[[], object] | None = None
    ) -> None:
        worker = self.start(strike, function)
        status = worker.wait(WORKER_SECONDS)
        if status is None:
            worker.kill()
        self.need(status is not None, "a worker hung")
        if strike is not None:
            struck = self.lane.recorder.points(struck=worker.pid)
            self.need(struck, f"the run did not come to {strike.point} of {strike.key!r}")

    def need(self, condition: object, otherwise: str) -> None:
        if not condition:
            raise AssertionError(otherwise)

    # What becomes of it.

    def settle(self) -> None:
        while True:
            state = run_until_settled(self.uuid, execute=lambda uuid: self.work())
            if state.status in WAITING:
                answer(self.uuid, {})
            elif state.uncertain and self.in_doubt and self.ask_again():
                continue
            else:
                break
        self.work()
        sweep()

    def ask_again(self) -> bool:
        """End the pause before the destination is asked again; whether there was one to end."""
        if self.cell.point not in VERIFIES:
            return False
        pausing = Step.objects.filter(run__uuid=self.uuid, ask_after__gt=Now())
        return bool(pausing.update(ask_after=Now()))

    @property
    def row(self) -> AgentRun:
        row: AgentRun = AgentRun.objects.get(uuid=self.uuid)
        return row

    def judge(self) -> None:
        row = self.row
        self.result.outcome = str(row.termination_reason or row.status)
        self.result.broken += broken_in(self.cell, row, self.lane.recorder)


def be_worker(
    recorder: RecorderClient, situation: Situation, function: Callable[[], object]
) -> None:
    report_to(recorder)
    if situation is Situation.VERIFIED:
        cell_agent.destination = recorder
    function()
