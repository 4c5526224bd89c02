"""Spans of the run, its segment and its steps around Pydantic AI's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

from agentruns import api
from agentruns.enums import RunStatus
from agentruns.models import AgentRun
from nrllm import register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, says

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.usefixtures("settings_for_runs")

SECRET = "a secret"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    # The exporter is asked by name in agentruns; Pydantic AI is given the provider.
    monkeypatch.setattr(
        Agent, "_instrument_default", InstrumentationSettings(tracer_provider=provider)
    )
    yield exporter
    provider.shutdown()


def test_every_transition_is_a_line_in_the_log_without_payloads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Scripted(calls(called("send", "w1", to=SECRET)), says(f"Done: {SECRET}"))
    agent: Agent[None, str] = Agent(model.model, name="clerk")

    @agent.tool_plain(requires_approval=True)
    async def send(to: str) -> str:
        return SECRET

    register_agent("clerk", agent)
    with caplog.at_level(logging.DEBUG):
        run = execute(accept("clerk", SECRET))
        question = run.journal().open_questions().get()
        api.decide(run.uuid, question.key, True, by="ann", digest=question.digest, note=SECRET)
        run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    lines = [record for record in caplog.records if hasattr(record, "agentrun_event")]
    said = [(one.agentrun_event, one.agentrun_epoch, one.agentrun_owner) for one in lines]  # type: ignore[attr-defined]
    history = api.events(run.uuid)
    assert said == [(str(event.kind), event.epoch, event.actor) for event in history]
    assert len(history) == 7
    assert {one.agentrun for one in lines} == {str(run.uuid)}  # type: ignore[attr-defined]
    ours = [one for one in caplog.records if one.name.startswith(("agentruns", "nrllm"))]
    assert SECRET not in "".join(str(vars(one)) for one in ours)


def test_a_correlation_id_is_on_the_run_and_on_its_spans(spans: InMemorySpanExporter) -> None:
    register_agent("clerk", Agent(Scripted(says("ok")).model, name="clerk"))
    accepted = api.enqueue("clerk", "go", correlation_id="letter-7")
    run = execute(AgentRun.objects.get(uuid=accepted.uuid))
    assert run.correlation_id == "letter-7"
    for name in ("agent run clerk", "agent run segment clerk"):
        attributes = named(spans, name).attributes
        assert attributes is not None
        assert attributes["agentrun.correlation_id"] == "letter-7"


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def parents(spans: InMemorySpanExporter, span: ReadableSpan) -> list[str]:
    """The names of the spans around this one, from the inside out."""
    known = {one.context.span_id: one for one in spans.get_finished_spans() if one.context}
    around = []
    while span.parent is not None and span.parent.span_id in known:
        span = known[span.parent.span_id]
        around.append(span.name)
    return around


def test_spans_of_run_segment_and_step_are_around_pydantic_ais_own(
    spans: InMemorySpanExporter,
) -> None:
    model = Scripted(calls(called("send", "w1", to=SECRET)), says(f"Done: {SECRET}"))
    agent: Agent[None, str] = Agent(model.model, name="clerk")

    @agent.tool_plain
    async def send(to: str) -> str:
        return SECRET

    register_agent("clerk", agent)
    run = execute(accept("clerk", SECRET))
    assert run.status == RunStatus.COMPLETED, run.error_message

    step = named(spans, "agent run step send")
    around = parents(spans, step)
    assert around[-2:] == ["agent run segment clerk", "agent run clerk"]
    assert any("agent" in name and not name.startswith("agent run ") for name in around), around
    assert step.attributes is not None
    assert step.attributes["agentrun.key"] == "tool:1:w1"
    assert step.attributes["agentrun.run"] == str(run.uuid)
    ours = [one for one in spans.get_finished_spans() if one.name.startswith("agent run ")]
    assert len(ours) >= 5
    assert SECRET not in "".join(one.to_json() for one in ours)
