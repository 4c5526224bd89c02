"""Every guard, how it is taken out, and a test that then fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """`old` stands once in `file`; with `new` in its place, `test` fails.

    `on_postgres`: it is a statement that other databases do not have.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
    on_postgres: bool = False


FENCE = "tests/agentruns/test_fence.py"
SEGMENT = "tests/agentruns/test_segment.py"
VERDICT = "tests/agentruns/test_verdict.py"
TRANSACTIONAL = "tests/agentruns/test_transactional.py"
RESOLVE = "tests/agentruns/test_resolve.py"
HOTPATH_RACES = "tests/races/test_hotpath.py"
REAPER_RACES = "tests/races/test_reaper.py"
SETREAPER_TESTS = "tests/agentruns/test_setreaper.py"
SECOND = "tests/agentruns/test_second_person.py"
APPROVALS = "tests/agentruns/test_approvals.py"
HEARTBEAT = "tests/agentruns/test_heartbeat.py"
LATE = "tests/agentruns/test_late_evidence.py"
INTERRUPTIONS = "tests/agentruns/test_interruptions.py"
STRANGE = "tests/agentruns/test_strange_errors.py"
RESOLUTION = "agentruns/models/resolution.py"
PERSON = "agentruns/models/person.py"
EXECUTION = "agentruns/execution.py"
PULSE = "tests/agentruns/test_pulse.py"
LIMITS = "tests/agentruns/test_limits.py"
WORKER = "agentruns/models/worker.py"
HOTPATH = "agentruns/hotpath.py"
HOTRUN = "agentruns/hotrun.py"
HOTRUN_RACES = "tests/races/test_hotrun.py"
SETREAPER = "agentruns/setreaper.py"

GUARDS = (
    Guard("a worker's guard: the epoch", "agentruns/guard.py",
          "        and run.claim_epoch == claim.epoch\n", "", FENCE),
    Guard("a worker's guard: the owner", "agentruns/guard.py",
          "        and run.claimed_by == claim.owner\n", "", FENCE),
    Guard("a worker's guard, in one statement: the epoch", "agentruns/hotpath.py",
          "claimed_by = %s AND claim_epoch = %s {further}",
          "claimed_by = %s AND claim_epoch + %s > 0 {further}", FENCE, on_postgres=True),
    Guard("a worker's guard, in one statement: the owner", HOTPATH,
          "claimed_by = %s AND claim_epoch", "claimed_by || %s <> '' AND claim_epoch",
          FENCE, on_postgres=True),
    Guard("a renewal, in one statement, is of its own run", HOTPATH,
          "    FROM held WHERE run.id = held.id\n    RETURNING run.id\n",
          "    FROM held\n    RETURNING run.id\n", HOTPATH_RACES, on_postgres=True),
    Guard("a renewal of many, in one statement: the epoch", HOTPATH,
          " AND run.claim_epoch = mine.epoch\n", "\n", PULSE, on_postgres=True),
    Guard("a renewal of many, in one statement: the owner", HOTPATH,
          " AND run.claimed_by = mine.owner AND run.claim_epoch = mine",
          " AND run.claim_epoch = mine", PULSE, on_postgres=True),
    Guard("a renewal of many waits for no row", HOTPATH,
          "        FOR NO KEY UPDATE OF run SKIP LOCKED\n    )\n    UPDATE",
          "        FOR NO KEY UPDATE OF run\n    )\n    UPDATE", PULSE, on_postgres=True),
    Guard("a renewal of many, row by row: owner and epoch", "agentruns/models/querysets.py",
          "            held = owned.intersection(claims)\n", "            held = set(claims)\n", PULSE),
    Guard("one run that can't be renewed keeps no other from it", "agentruns/heartbeat.py",
          "if len(segments) == 1 or isinstance(error, AWAY):", "if True:", PULSE, on_postgres=True),
    Guard("a stamp, in one statement, needs that no fence stands", HOTPATH,
          " AND pending_effect = '' AND pending_step_id IS NULL\"", "\"", FENCE, on_postgres=True),
    Guard("a stamp, in one statement, needs that no cancel was requested", HOTPATH,
          "AND cancel_requested_at IS NULL AND pending", "AND pending", FENCE, on_postgres=True),
    Guard("a stamp, in one statement, asks the second witness", HOTPATH,
          "        WHERE NOT EXISTS (", "        WHERE true OR NOT EXISTS (",
          FENCE, on_postgres=True),
    Guard("a record, in one statement, needs an attempt in flight", HOTPATH,
          "AND step.state = 'started' AND", "AND", FENCE, on_postgres=True),
    Guard("a record, in one statement, clears its own fence only", HOTPATH,
          "NULLIF(run.pending_step_id, recorded.id)", "NULL", FENCE, on_postgres=True),
    Guard("an enqueue, in one statement, leaves a key that is taken to whom it belongs", HOTRUN,
          " ON CONFLICT DO NOTHING", "", HOTRUN_RACES, on_postgres=True),
    Guard("a claim, in one statement, needs a queued run", HOTRUN,
          " AND status = 'queued'", "", HOTRUN_RACES, on_postgres=True),
    Guard("a claim, in one statement, needs a run that is due", HOTRUN,
          " AND available_at <= statement_timestamp()", "", HOTRUN_RACES, on_postgres=True),
    Guard("a claim, in one statement, needs a version that is served", HOTRUN,
          "AND agent_version = (%s::text[])[", "AND agent <> (%s::text[])[",
          HOTRUN_RACES, on_postgres=True),
    Guard("a claim, in one statement, takes its own run", HOTRUN,
          "        FROM fit WHERE run.id = fit.id\n        RETURNING {",
          "        FROM fit\n        RETURNING {", HOTRUN_RACES, on_postgres=True),
    Guard("a claim or a completion, in one statement, asks the second witness", HOTRUN,
          "FROM held WHERE NOT EXISTS (", "FROM held WHERE true OR NOT EXISTS (",
          FENCE, on_postgres=True),
    Guard("a completion, in one statement, needs that no fence stands", HOTRUN,
          " AND pending_effect = ''\"", "\"", FENCE, on_postgres=True),
    Guard("a completion, in one statement, needs that no cancel was requested", HOTRUN,
          "AND cancel_requested_at IS NULL AND pending", "AND pending",
          HOTRUN_RACES, on_postgres=True),
    Guard("a completion, in one statement, is of its own run", HOTRUN,
          "        FROM fit WHERE run.id = fit.id\n        RETURNING run.id, ",
          "        FROM fit\n        RETURNING run.id, ", HOTRUN_RACES, on_postgres=True),
    Guard("a stamp needs that no fence stands", WORKER,
          "            if row.pending_effect or any(step.is_unresolved_write for step in known):\n",
          "            if False:\n", FENCE),
    Guard("a stamp needs that no cancel was requested", WORKER,
          "            if row.cancel_requested_at is not None:\n"
          "                raise CancelRequested(f\"run {self.uuid}: a cancel was requested\")\n"
          "            known", "            known", FENCE),
    Guard("a stamp needs that an earlier attempt did not land", WORKER,
          "            if landed and not may_retry_after_fence(call.effect):\n",
          "            if False:\n", FENCE),
    Guard("a stamp is committed before the body", WORKER,
          "with self._held(claim, durable=True) as row:", "with self._held(claim) as row:", FENCE),
    Guard("only its own record clears a fence", WORKER,
          "                if row.pending_step_id == step.pk:\n", "                if True:\n", FENCE),
    Guard("a claim refuses an unresolved write", WORKER,
          "        if not may_retry_after_fence(fence):\n", "        if False:\n", FENCE),
    Guard("a claim needs a free slot of its agent", "agentruns/models/querysets.py",
          "                free = most is None or self.hold_free_slot(run.agent, most)\n",
          "                free = True\n", LIMITS),
    Guard("a claim in one statement leaves agents with a limit alone", HOTRUN,
          'UNLIMITED = "AND agent <> ALL(%s::text[])"', 'UNLIMITED = "AND %s::text[] IS NOT NULL"',
          LIMITS, on_postgres=True),
    Guard("a claim counts the runs of its agent under a lock", "agentruns/models/slots.py",
          "        lock_slots(agent)\n", "", "tests/races/test_limits.py", on_postgres=True),
    Guard("a claim that found no slot looks again when its run is in line",
          "agentruns/models/querysets.py",
          "            if not self.has_free_slot(run.agent, limits[run.agent]):\n",
          "            if True:\n", LIMITS),
    Guard("a sweep leaves the runs of a full agent alone", "agentruns/models/querysets.py",
          "self.unwoken().exclude(agent__in=limited) if limited else self.unwoken()",
          "self.unwoken()", LIMITS),
    Guard("who leaves a slot wakes who is next", "agentruns/runner.py",
          "        slots.wake_next(run.agent)\n", "        pass\n", LIMITS),
    Guard("a run does not complete with its fence standing", WORKER,
          "            row._refuse_fence()\n            if row.cancel_requested_at is not None:\n"
          "                row._settle_cancelled",
          "            if row.cancel_requested_at is not None:\n                row._settle_cancelled",
          FENCE),
    Guard("the reaper judges under the lock", "agentruns/models/querysets.py",
          "self.for_judgement().stale().filter(pk__in=list(locked))",
          "self.for_judgement().filter(pk__in=list(locked))",
          REAPER_RACES, on_postgres=True),
    Guard("reaping by sets: staleness", SETREAPER,
          "      AND run.lease_expires_at < statement_timestamp()\n", "", SETREAPER_TESTS,
          on_postgres=True),
    Guard("reaping by sets: what changed before the lock is judged again", SETREAPER,
          " FOR NO KEY UPDATE OF run SKIP LOCKED", "", REAPER_RACES, on_postgres=True),
    Guard("reaping by sets: what others hold is theirs", SETREAPER,
          " SKIP LOCKED", "", REAPER_RACES, on_postgres=True),
    Guard("reaping by sets: where the batch begins", SETREAPER,
          " AND run.id > %s\n", " AND run.id + %s > 0\n", SETREAPER_TESTS, on_postgres=True),
    Guard("reaping by sets: where the batch ends", SETREAPER,
          "LIMIT %s FOR", "LIMIT 1000 + %s FOR", SETREAPER_TESTS, on_postgres=True),
    Guard("reaping by sets: the second witness", "agentruns/rulings.py",
          "lambda: Attempt.IN_DOUBT if self.is_in_doubt else None", "lambda: None", SETREAPER_TESTS,
          on_postgres=True),
    Guard("reaping by sets: the second witness sees what is uncertain", SETREAPER,
          "unresolved=UNRESOLVED_SQL", "unresolved=\"doubt.state = 'started'\"", SETREAPER_TESTS,
          on_postgres=True),
    Guard("reaping by sets: a kind without a ruling holds its batch back", SETREAPER,
          "      AND NOT EXISTS (SELECT FROM judged WHERE number IS NULL)\n", "", SETREAPER_TESTS,
          on_postgres=True),
    Guard("reaping by sets: each run's own attempt", SETREAPER,
          '"pending_step_id": "attempt"', '"pending_step_id": "run.pending_step_id"',
          SETREAPER_TESTS, on_postgres=True),
    Guard("reaping by sets: only an interrupted write is uncertain", SETREAPER,
          "step.id = moved.attempt AND uncertain AND", "step.id = moved.attempt AND",
          SETREAPER_TESTS, on_postgres=True),
    Guard("reaping by sets: what Python can't read fails its batch", SETREAPER,
          "min(lease) {details}", "NULL {details}", SETREAPER_TESTS, on_postgres=True),
    Guard("the verdict: a write that must not be repeated", "agentruns/verdict.py",
          "    return pending_effect != ToolEffect.NON_IDEMPOTENT_WRITE\n", "    return True\n", VERDICT),
    Guard("the verdict: the budget", "agentruns/verdict.py",
          "    if requeue_count >= max_requeues:\n", "    if False:\n", VERDICT),
    Guard("the verdict: a run that can't be executed again", "agentruns/verdict.py",
          "    if not executable_again:\n", "    if False:\n", VERDICT),
    Guard("a paused worker does not start the body", "agentruns/execution.py",
          "        if paused > conf.LEASE_SECONDS / 2 or self.heartbeat.lost is not None:\n",
          "        if False:\n", "tests/agentruns/test_heartbeat.py"),
    Guard("a recorded step is replayed", "agentruns/asking.py",
          "        recorded = self._recorded(call)\n        if recorded is not None:\n"
          "            return await self._replay(recorded, calls)\n        if call.key in",
          "        if call.key in", SEGMENT),
    Guard("a write inside atomic() is refused", "agentruns/transactional.py",
          "    if connections[conf.DATABASE].in_atomic_block:\n        raise InsideTransaction(\n"
          "            f\"step", "    if False:\n        raise InsideTransaction(\n            f\"step",
          SEGMENT),
    Guard("a transactional body leaves nothing for later", "agentruns/transactional.py",
          "    if connections[conf.DATABASE].run_on_commit:\n", "    if False:\n", TRANSACTIONAL),
    Guard("'it did not happen' needs that the former worker is gone",
          "agentruns/models/resolution.py",
          "        elif not worker_may_act_confirmed:\n",
          "        elif False:\n", RESOLVE),
    Guard("a verdict is bound to what was shown", "agentruns/models/resolution.py",
          "        if self.resolution_digest() != digest:\n", "        if False:\n", RESOLVE),
    Guard("'it did not happen' looks at the worker of every attempt", RESOLUTION,
          "for attempt in attempts]", "for attempt in [step]]",
          RESOLVE),
    Guard("a body that raised does not count as over", "agentruns/segment.py",
          "return self.unrecorded is None or self.unrecorded[1].outcome is not StepOutcome.RAISED",
          "return True", INTERRUPTIONS),
    Guard("a body whose end was not seen does not count as over", EXECUTION,
          "        self.unrecorded = (step, Ending(StepOutcome.RAISED, None, \"its end was not seen\"))\n",
          "", STRANGE),
    Guard("a verdict needs the permission, judged under the lock", RESOLUTION,
          "identity_of(by, RESOLVE).get(\"user\", \"\")", "\"\"", SECOND),
    Guard("a proposal of another state, or of somebody who may not resolve, is void", RESOLUTION,
          "if last and not self.why_void(last) else None", "if last else None", SECOND),
    Guard("nobody seconds a proposal of their own", "agentruns/verdict.py",
          "    if given.is_of_the_same_person_as(proposed):\n", "    if False:\n", SECOND),
    Guard("a destination's verdict has a budget", RESOLUTION,
          "        if self.requeue_count >= conf.MAX_REQUEUES:\n", "        if False:\n",
          "tests/agentruns/test_verification.py"),
    Guard("late evidence is of the segment that began the write", WORKER,
          "Step.objects.filter(pk=step.pk, epoch=claim.epoch, owner=claim.owner)",
          "Step.objects.filter(pk=step.pk)", LATE),
    Guard("an approval is of this very call", WORKER,
          "            and decision.digest == call.digest\n", "", APPROVALS),
    Guard("an approval that has to be given for each attempt is used up", WORKER,
          "        if decision.used_at is not None and conf.APPROVAL_PER_ATTEMPT:\n",
          "        if False:\n", "tests/agentruns/test_questions.py"),
    Guard("whoever approved a write may still do so when it is stamped", WORKER,
          "        if decision.result is not None and (why := why_not(decision.result.value)):\n",
          "        if why := \"\":\n", "tests/agentruns/test_deciders.py"),
    Guard("a decision is on the call that was shown", PERSON,
          "            question = question.filter(digest=digest)\n", "            pass\n", APPROVALS),
    Guard("a cancel waits for the write in flight", PERSON,
          "            if row.status == RunStatus.RUNNING and fence:\n", "            if False:\n",
          "tests/agentruns/test_cancel.py"),
    Guard("SIGTERM does not interrupt a write", "agentruns/segment.py",
          "at_once = self._writes == 0 and not", "at_once = not", "tests/crash/test_stopping.py",
          on_postgres=True),
    Guard("a step needs a lease that was renewed", "agentruns/heartbeat.py",
          "        if self.lost is not None:\n            raise LeaseLost(str(self.lost))\n", "",
          HEARTBEAT),
    Guard("what hangs is not renewed", "agentruns/heartbeat.py",
          " and not waits and not self._hangs()\n", " and not waits\n", HEARTBEAT),
    Guard("a transactional body stays in its transaction", "agentruns/transactional.py",
          "        if connection.connection is not opened or not connection.in_atomic_block:\n",
          "        if False:\n", INTERRUPTIONS),
    Guard("a transactional body uses its own database alone", "agentruns/transactional.py",
          "with inside(call), only_this_database():", "with inside(call):", TRANSACTIONAL),
    Guard("what a strange error's text does ends nothing", "agentruns/fields.py",
          "    except BaseException:  # whatever", "    except (Exception, KeyboardInterrupt):  # whatever", STRANGE),
)  # fmt: skip
