"""What a stranger may put into any text: for tests that it does nothing where it is shown."""

from __future__ import annotations

from typing import Any

from agentruns import registry
from agentruns.enums import FailureClass, Resolution, StepKind, StepOutcome, ToolEffect
from agentruns.failures import Failure
from agentruns.fields import Payload
from agentruns.models import AgentRun
from agentruns.models.step import Ending
from agentruns.reaper import sweep
from tests.harness.runs import reread

from .cases import asking, call, completed, interrupted, queued, running, writing

# What would be seen to have run: in an attribute, in a script, in a link, in a style's end.
MARKUP = (
    "<img src=x onerror='window.harmed=1'><script>window.harmed=1</script>"
    "</pre></textarea></title></style>\"'><svg onload=window.harmed=1>"
    "<a href=\"javascript:window.harmed=1\">{{ 7|add:'1' }}{% now 'Y' %}</a>"
)
# Clears a screen, sets a title, rings, hides, turns the writing round.
CONTROLS = "\x1b[2J\x1b]0;harmed\x07\x08\x9b1m\r\x7f\u202eback\u2066\u200b\ufeff"
SHORT = f"{MARKUP[:57]}\x1b[2J\u202e"
TEXT = MARKUP + CONTROLS
PAYLOAD = TEXT + "\x00\udfff\ud800"
MEGABYTE = PAYLOAD + "x" * 1_000_000


def nested(depth: int = 190) -> Any:
    value: Any = PAYLOAD
    for level in range(depth):
        value = {PAYLOAD: value} if level % 2 else [value]
    return value


def hostile_runs() -> dict[str, AgentRun]:
    """A run of each kind that the pages show, hostile in everything that a stranger may write.

    Its agent stays registered: call this under a patched registry.
    """
    registry.add(registry.RegisteredAgent(SHORT, lambda segment: None))
    names: dict[str, Any] = {
        "agent": SHORT,
        "requested_by": SHORT,
        "correlation_id": SHORT,
    }
    doubtful = interrupted(request=MEGABYTE, arguments=MEGABYTE, **names)
    stale, claim, step = writing(stale=True, arguments=nested(), **names)
    sweep()
    ending = Ending(StepOutcome.RAISED, Payload.of(PAYLOAD), PAYLOAD)
    AgentRun.objects.get(pk=stale.pk).add_late_evidence(claim, step, ending)
    left = interrupted(arguments=PAYLOAD, **names)
    left.resolve(Resolution.LEFT, by=SHORT, reason=PAYLOAD, digest=left.resolution_digest())
    asked = {"question": PAYLOAD, "schema": schema()}
    return {
        "queued": queued(request=nested(), **names),
        "completed": completed(output=MEGABYTE, request=nested(), **names),
        "doubtful": doubtful,
        "late": reread(stale),
        "left": reread(left),
        "failed": broken(**names),
        "approval": asking(StepKind.APPROVAL, {PAYLOAD: MEGABYTE}, **names),
        "question": asking(arguments=asked, **names),
    }


def schema() -> dict[str, Any]:
    """A question's schema, written by a stranger."""
    text = {"type": "string", "title": PAYLOAD, "description": PAYLOAD}
    choice = {"enum": [PAYLOAD, {PAYLOAD: 1}], "title": TEXT}
    return {"type": "object", "properties": {PAYLOAD: text, "b": choice}, "required": [PAYLOAD]}


def broken(**options: Any) -> AgentRun:
    """A run that failed, after a step of a hostile name."""
    run, claim = running(**options)
    step = call(SHORT, effect=ToolEffect.READ_ONLY)
    run.record_step(claim, step, Ending(StepOutcome.RETURNED, Payload.of(nested())))
    run.recover(claim, Failure(FailureClass.UNKNOWN), RuntimeError(PAYLOAD))
    return reread(run)
