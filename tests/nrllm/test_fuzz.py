"""What a model and its tools may send, at random: no worker dies of it, and no write is repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry, ToolFailed
from pydantic_ai.messages import ToolCallPart

from agentruns import api, registry
from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun
from nrllm import EffectLanded, EffectNotApplied, effect, register_agent, registration
from tests.agentruns.commands.conftest import Commands
from tests.nrllm.support import Scripted, accept, calls, execute, says, steps
from tests.strange import JSON, MOST_BYTES, TEXT, examples, values

pytestmark = [pytest.mark.usefixtures("small_payloads"), pytest.mark.timeout(1800)]

SEGMENTS = 5
effects = st.sampled_from(list(ToolEffect))


@pytest.fixture
def small_payloads(settings_for_runs: Any) -> None:
    settings = settings_for_runs
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_PAYLOAD_BYTES": MOST_BYTES}


def register(agent: Agent[None, str]) -> None:
    """Under the name of the example before it."""
    registry._agents.clear()
    registration._agents.clear()
    register_agent("fuzzed", agent)


def to_the_end(run: AgentRun) -> AgentRun:
    for _ in range(SEGMENTS):
        run = execute(run)
        if run.status != RunStatus.QUEUED:
            return run
    raise AssertionError(f"run {run.uuid} does not end: {run.status} {run.error_message}")


def look_at(run: AgentRun) -> None:
    api.status(run.uuid)
    api.events(run.uuid)
    said = Commands()("show_agent_run", str(run.uuid), "--payloads", "--json")
    assert said.failure is None
    assert said.json["uuid"] == str(run.uuid)


MALFORMED = ["", "{", "[]", "null", "1", '"x"', '{"to": 1', '{"to": "a", "to": "b"}', "NaN", "\x00"]
DEEP = ['{"to": ' + "[" * 500 + "]" * 500 + "}", '{"to": "\\ud800"}', '{"to": 1e999}']
sent_arguments = st.one_of(
    st.sampled_from([*MALFORMED, *DEEP, None]),
    TEXT,
    JSON.map(lambda value: json.dumps({"to": value})),
    st.dictionaries(st.sampled_from(["to", "", "\ud800"]), JSON, max_size=2),
)
names = st.sampled_from(["send", "send", "look", "final_result", ""]) | TEXT
sent_calls: st.SearchStrategy[ToolCallPart] = st.builds(
    ToolCallPart,
    names,
    sent_arguments,
    tool_call_id=st.sampled_from(["c", "c", "d", "", "x" * 300, "\ud800" * 130]) | TEXT,
)


def test_whatever_a_model_calls_ends_in_a_known_state(request: pytest.FixtureRequest) -> None:
    @examples(request)
    @given(st.lists(sent_calls, min_size=1, max_size=3), st.sampled_from([Any, str, dict, int]))
    def check(parts: list[ToolCallPart], wanted: Any) -> None:
        sent: list[Any] = []
        away: dict[int, list[Exception]] = {1: [ModelHTTPError(503, "scripted")]}
        model = Scripted(calls(*parts), *[says("done")] * 3, failures=away)
        agent: Agent[None, str] = Agent(model.model, name="fuzzed")

        @effect(ToolEffect.NON_IDEMPOTENT_WRITE)
        def send(to: Any) -> Any:
            sent.append(to)
            return "sent"

        send.__annotations__["to"] = wanted
        agent.tool_plain(send)

        @agent.tool_plain
        @effect(ToolEffect.READ_ONLY)
        def look(to: str = "") -> str:
            return to

        register(agent)
        run = to_the_end(accept("fuzzed"))
        look_at(run)
        assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        assert run.pending_effect == "", "the tool returned: nothing is uncertain"
        assert len(sent) == sum(step.name == "send" and step.kind == "tool" for step in steps(run))

    check()


ends = st.one_of(
    values.map(lambda value: ("returns", value)),
    values.map(lambda value: ("raises", EffectNotApplied(value))),
    values.map(lambda value: ("raises", EffectLanded(value))),
    TEXT.map(lambda text: ("raises", ToolFailed(text))),
    TEXT.map(lambda text: ("raises", ModelRetry(text))),
    values.map(lambda value: ("raises", RuntimeError(value))),
)


def test_however_a_tool_ends_its_run_ends_in_a_known_state(request: pytest.FixtureRequest) -> None:
    @examples(request)
    @given(effects, ends)
    def check(declared: ToolEffect, end: tuple[str, Any]) -> None:
        bodies: list[str] = []
        away: dict[int, list[Exception]] = {1: [ModelHTTPError(503, "scripted")]}
        part = ToolCallPart("act", {}, tool_call_id="call-1")
        model = Scripted(calls(part), *[says("done")] * 3, failures=away)
        agent: Agent[None, str] = Agent(model.model, name="fuzzed")

        @agent.tool_plain
        @effect(declared)
        def act() -> Any:
            bodies.append("act")
            how, what = end
            if how == "raises":
                raise what
            return what

        register(agent)
        run = to_the_end(accept("fuzzed"))
        look_at(run)
        assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        writes = declared is ToolEffect.NON_IDEMPOTENT_WRITE
        assert len(bodies) == 1 or not writes
        certain = end[0] == "returns" or isinstance(
            end[1], (EffectNotApplied, EffectLanded, ToolFailed)
        )
        assert run.pending_effect == "" or not certain
        if writes and not certain:
            assert run.termination_reason == "interrupted_write"

    check()
