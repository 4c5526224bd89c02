from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections

from .conf import conf
from .digests import read_key, under
from .enums import QUESTIONS, RECORDABLE, StepKind, StepState, ToolEffect
from .exceptions import AgentRunError, JournalMismatch
from .fields import Payload, label
from .models import Step, StepCall

if TYPE_CHECKING:
    from .models import AgentRun
    from .models.step import Ending


RESULT = "SELECT result FROM agentruns_step WHERE run_id = %s AND recorded_key = %s"


class Line(NamedTuple):
    """What a replay reads of an attempt, and nothing else."""

    key: str
    attempt: int
    recorded_key: str | None
    kind: str
    name: str
    effect: str
    state: str
    outcome: str
    digest: str
    error: str

    @classmethod
    def recorded(cls, call: StepCall, ending: Ending) -> Line:
        """What the journal has of a call that was just recorded with this ending."""
        return cls(
            key=call.key,
            attempt=call.attempt,
            recorded_key=call.key,
            kind=call.kind,
            name=call.name,
            effect=call.effect,
            state=StepState.RECORDED,
            outcome=ending.outcome,
            digest=call.digest,
            error=ending.error,
        )


class Journal:
    """A run's steps, as the segment that replays them sees them. Results are read one by one."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._recorded: dict[str, Line] = {}
        self._unconsumed: dict[str, Line] = {}
        self._questions: list[str] = []
        # The last attempt of each step, recorded or not.
        self._attempted: dict[str, Line] = {}
        self._attempts: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._callers: dict[str, tuple[int, int]] = {}
        self._explicit: set[str] = set()
        self._position = 0
        self._digest_key = b""

    def load(self, digest_key: Payload | None = None) -> None:
        """Read the recorded steps, without their payloads. On the SQL thread.

        Raises:
            PayloadUnreadable: the key of its digests can't be decrypted.
            JournalMismatch: a step says what no version of this code writes; the message names it.
        """
        self._digest_key = read_key(digest_key)
        self._attempts.clear()
        rows = Step.objects.filter(run_id=self._run.pk).order_by("pk")
        for row in rows.values_list(*Line._fields):
            step = Line(*row)
            refuse_damaged(step)
            self._attempts[step.key] += 1
            self._attempted[step.key] = step
            if step.recorded_key is not None:
                self._recorded[step.key] = step
        self._unconsumed = dict(self._recorded)
        self._questions = [key for key, step in self._recorded.items() if step.kind in QUESTIONS]

    def call(
        self,
        name: str,
        *,
        effect: ToolEffect,
        kind: StepKind,
        key: str | None,
        arguments: object,
        digest: str | None,
    ) -> StepCall:
        """Name a call: by its key, or by its name and how often that was called before."""
        stored = None if arguments is None else Payload.of(arguments)
        if key is None:
            key = self._counted(name, stored is not None or bool(digest))
        else:
            self._explicit.add(key)
        self._position += 1
        return StepCall(
            key=label(key, "a step's key", 255),
            name=label(name, "a step's name"),
            kind=StepKind(kind),
            effect=_effect(name, effect),
            arguments=stored,
            digest=self.keyed(digest if digest is not None else stored.digest if stored else ""),
            position=self._position,
            attempt=self._attempts[key] + 1,
        )

    def keyed(self, digest: str) -> str:
        """A plain digest as it is kept for this run."""
        return under(self._digest_key, digest)

    def _counted(self, name: str, told_apart: bool) -> str:
        """The key of a call that gave none: its name, counted.

        Raises:
            AgentRunError: the count says nothing, since concurrent tasks or threads make these calls
                and no arguments tell them apart; or the key was given to another call.
        """
        self._calls[name] += 1
        count = self._calls[name]
        caller = self._callers.setdefault(name, _caller())
        if count > 1 and not told_apart and caller != _caller():
            raise AgentRunError(
                f"step {name!r} is called from several tasks or threads, whose order may differ in a "
                "replay: give each call its own key, or its arguments"
            )
        key = name if count == 1 else f"{name}#{count}"
        if key in self._explicit:
            raise AgentRunError(f"step {name!r}: the key {key!r} was given to another call")
        return key

    def replay(self, call: StepCall) -> Line | None:
        """The recorded step of this call, or None where it is to be executed.

        Raises:
            JournalMismatch: another name, kind or other arguments are recorded under its key.
        """
        step = self._recorded.get(call.key)
        known = step or self._attempted.get(call.key)
        if known is not None and not (step is None and call.kind in QUESTIONS):
            refuse_another(known, call)
        if call.kind not in QUESTIONS:
            # What was asked about this call may be asked for later, or not again if it is recorded.
            self.skip(f"{call.key}?")
        if step is None:
            return None
        self._unconsumed.pop(call.key, None)
        return step

    def remember(self, step: Line) -> None:
        """Keep a step that this segment recorded, so that its key is replayed if asked for again."""
        self._attempts[step.key] = step.attempt
        self._recorded[step.key] = step

    def skip(self, key: str) -> None:
        """Count a recorded question as asked for: one about an attempt that has used it up."""
        for known in self._questions:
            if known == key or (known.startswith(key) and known[len(key) :].isdecimal()):
                self._unconsumed.pop(known, None)

    def forget(self, key: str) -> None:
        """Drop a recorded step that was taken out of the journal: it is asked for anew."""
        self._recorded.pop(key, None)
        self._unconsumed.pop(key, None)

    def is_known(self, call: StepCall) -> bool:
        """Whether an earlier attempt at this call was started."""
        return self._attempts[call.key] > 0

    @property
    def unconsumed(self) -> int:
        """How many recorded steps the code has not asked for yet."""
        return len(self._unconsumed)

    def refuse_unconsumed(self, instead: str) -> None:
        """Refuse to go on while recorded steps stand that the code did not ask for.

        Raises:
            JournalMismatch: names the first of them, and what the code did instead.
        """
        if self._unconsumed:
            first = next(iter(self._unconsumed.values()))
            raise JournalMismatch(
                f"step {first.key!r} is recorded, but the code {instead} without asking for it; the "
                "code has changed since the run began, or it is not deterministic"
            )


def _effect(step: str, said: str) -> ToolEffect:
    try:
        return ToolEffect(said)
    except ValueError as error:
        raise ValueError(f"the effect of step {step!r}: {error}") from None


def read_result(run: AgentRun, key: str) -> Payload | None:
    """The result of a recorded step: a statement that replays send often, on every database."""
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(RESULT, [run.pk, key])
        row = cursor.fetchone()
    if row is None:
        raise Step.DoesNotExist(f"step {key} of run {run.uuid} was deleted")
    return None if row[0] is None else Payload(row[0])


def _caller() -> tuple[int, int]:
    """Who calls: the thread, and its task where an event loop runs in it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def refuse_damaged(step: Line) -> None:
    """Refuse an attempt of an unknown state or end: whether it happened could not be told from it.

    Raises:
        JournalMismatch: says which column it is.
    """
    recorded = step.recorded_key is not None
    for what, known in (
        ("state", step.state in StepState.values),
        ("effect", step.effect in ToolEffect.values),
        ("outcome", not recorded or step.outcome in RECORDABLE),
    ):
        if not known:
            raise JournalMismatch(
                f"step {step.key!r}: the journal has {what} {getattr(step, what)!r}, which says nothing "
                "to this version"
            )


def refuse_another(step: Line, call: StepCall) -> None:
    """Refuse a call that is not the one which the journal has under its key.

    Raises:
        JournalMismatch: says what differs.
    """
    for what in ("name", "kind", "digest"):
        known, asked = str(getattr(step, what)), str(getattr(call, what))
        if known != asked:
            raise JournalMismatch(
                f"step {call.key!r}: the journal has {what} {known!r}, the code asks for {asked!r}; "
                "the code has changed since the run began, or it is not deterministic"
            )
