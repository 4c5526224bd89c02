from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from django.db import DataError, transaction

from . import hotpath
from .bodies import Body, ending_said
from .clock import clock
from .conf import conf
from .enums import StepOutcome, StepState
from .exceptions import EffectNotApplied
from .models import AgentRun, Step, StepCall
from .models.step import Ending, idempotency_key
from .redaction import told
from .sqlthread import ANY_FAILURE, WORTH_ANOTHER_CONNECTION, on_new_connections
from .transactional import transactional_body

if TYPE_CHECKING:
    from .guard import Claim

logger = logging.getLogger(__name__)


class Attempts:
    """Writes a segment's attempts: stamped, recorded, or both in one transaction.

    Everything here runs on the segment's SQL thread, and takes up again what a lost connection left
    unknown.
    """

    def __init__(self, run: AgentRun, claim: Claim) -> None:
        self.run = run
        self.claim = claim
        # What this segment knows to be stamped: not what a lost commit may have left.
        self._stamped: set[int] = set()

    def stamp(self, call: StepCall, approval: str | None) -> Step:
        def attempt(again: bool) -> Step:
            if again:
                own = self.run.own_attempt(self.claim, call.key)
                unseen = own is not None and own.pk not in self._stamped
                if own is not None and unseen and own.state == StepState.STARTED:
                    return own
            return hotpath.stamp(self.run, self.claim, call, approval)

        step = on_new_connections(attempt, conf.LEASE_SECONDS / 2, ANY_FAILURE)
        self._stamped.add(step.pk)
        return step

    def record(self, call: StepCall, ending: Ending, step: Step | None) -> tuple[Ending, bool]:
        def attempt(again: bool) -> bool:
            if again:
                own = self.run.own_attempt(self.claim, call.key)
                if own is not None and own.state == StepState.RECORDED:
                    return False
            return hotpath.record(self.run, self.claim, call, ending, step)

        try:
            return ending, on_new_connections(attempt, conf.RECORD_RETRY_SECONDS, ANY_FAILURE)
        except DataError as error:
            if step is None or ending.outcome is StepOutcome.LANDED_WITHOUT_RESULT:
                raise
            # The effect happened; what can't be stored is its result.
            logger.exception("the result of step %s could not be stored", call.key)
            stand_in = Ending(StepOutcome.LANDED_WITHOUT_RESULT, None, told(error))
            return self.record(call, stand_in, step)

    def commit(self, call: StepCall, body: Body, approval: str | None) -> tuple[Ending, bool]:
        key, began = idempotency_key(self.run.uuid, call.key), clock()
        try:
            with transaction.atomic(using=conf.DATABASE, durable=True):
                if approval is not None:
                    self.run.use_approval(self.claim, call, approval)
                ending = replace(transactional_body(call, body, key), began=began)
                return ending, hotpath.record(self.run, self.claim, call, ending)
        except EffectNotApplied as said:
            return self.record(call, replace(ending_said(said), began=began), None)
        except WORTH_ANOTHER_CONNECTION as error:
            own = on_new_connections(
                lambda again: self.run.own_attempt(self.claim, call.key),
                conf.RECORD_RETRY_SECONDS,
            )
            if own is None or own.state != StepState.RECORDED:
                raise error
            return own.ending, False
