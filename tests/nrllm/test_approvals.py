from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ApprovalRequired, ModelHTTPError, ModelRetry
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import FunctionToolset

from agentruns import api, registry
from agentruns.enums import EventKind, RunStatus, StepState, ToolEffect
from agentruns.models import AgentRun, Step
from nrllm import Declaration, ask_person, effect, register_agent, registration
from tests.nrllm.support import (
    Scripted,
    accept,
    arguments,
    called,
    calls,
    execute,
    keys,
    output,
    reread,
    says,
)

pytestmark = pytest.mark.usefixtures("settings_for_runs")

WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
TWO_MAILS_AND_A_READ = calls(
    called("send", "w1", to="x"), called("look", "r1", n=1), called("send", "w2", to="y")
)


class Clerk:
    """An agent that looks and sends; each mail needs an approval."""

    def __init__(self, *turns: Any, failures: Any = None, **options: Any) -> None:
        self.done: list[str] = []
        self.model = Scripted(*turns, failures=failures)
        self.agent: Agent[None, str] = Agent(self.model.model, name="clerk")
        self.agent.tool_plain(metadata={"effect": ToolEffect.READ_ONLY})(self.look)
        if options.pop("flag", False):
            self.agent.tool_plain(requires_approval=True)(self.send)
        else:
            self.agent.tool_plain(self.send)
        register_agent("clerk", self.agent, **options)

    async def look(self, n: int) -> str:
        self.done.append(f"look {n}")
        return f"seen {n}"

    async def send(self, to: str, copies: int = 1) -> str:
        self.done.append(f"send {to}")
        return f"sent {to}"

    def told(self) -> list[Any]:
        """What the last request to the model says about the calls."""
        parts = [part for message in self.model.asked[-1] for part in message.parts]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)]


def needing_approval(*turns: Any, **options: Any) -> Clerk:
    declared = Declaration(WRITE, needs_approval=True)
    return Clerk(*turns, effects={"send": declared}, **options)


def questions(run: AgentRun) -> list[Step]:
    return list(run.journal().open_questions().order_by("pk"))


def decide(run: AgentRun, key: str, approved: bool = True, note: str = "") -> None:
    digest = Step.objects.get(run=run, key=key, state=StepState.STARTED).digest
    api.decide(run.uuid, key, approved, by="boss", digest=digest, note=note)


def decide_all(run: AgentRun, approved: bool = True) -> None:
    for question in questions(run):
        decide(run, question.key, approved)


def test_a_declared_write_waits_and_runs_with_the_arguments_that_were_shown() -> None:
    clerk = needing_approval(calls(called("send", "w1", to="x")), says("Done."))
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    assert (run.pending_effect, run.lease_expires_at, clerk.done) == ("", None, [])
    (question,) = questions(run)
    assert (question.key, question.name) == ("tool:1:w1?", "send")
    assert arguments(question) == {"to": "x", "copies": 1}
    decide_all(run)
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert clerk.done == ["send x"]
    decision = Step.objects.get(run=run, key="tool:1:w1?")
    assert decision.used_at is not None, "the stamp used the decision up"


@pytest.mark.parametrize("how", ["flag", "metadata", "decorator", "setting", "toolset"])
def test_every_way_to_say_that_a_tool_needs_an_approval(how: str, settings_for_runs: Any) -> None:
    model = Scripted(calls(called("send", "w1", to="x")), says("Done."))
    done: list[str] = []

    async def send(to: str) -> str:
        done.append(to)
        return "sent"

    tools: FunctionToolset[None] = FunctionToolset(id="mail")
    if how == "setting":
        options = {**settings_for_runs.AGENTRUNS, "WRITES_NEED_APPROVAL": True}
        settings_for_runs.AGENTRUNS = options
    tools.add_function(
        effect(WRITE, needs_approval=True)(send) if how == "decorator" else send,
        requires_approval=how == "flag",
        metadata={"needs_approval": True} if how == "metadata" else None,
    )
    toolset = tools.approval_required() if how == "toolset" else tools
    register_agent("clerk", Agent(model.model, name="clerk", toolsets=[toolset]))
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    assert done == []
    decide_all(run)
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["x"]
    assert Step.objects.get(run=run, key="tool:1:w1?").used_at is not None


def test_a_denial_is_told_to_the_model_and_told_again_on_replay() -> None:
    failing = {1: [ModelHTTPError(503, "scripted")]}
    clerk = needing_approval(
        calls(called("send", "w1", to="x")), says("I did not."), failures=failing
    )
    run = execute(accept("clerk"))
    decide(run, "tool:1:w1?", approved=False, note="Not to them.")
    run = execute(run)
    assert run.status == RunStatus.QUEUED, run.error_message
    first = clerk.told()
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "I did not."
    assert clerk.done == []
    assert clerk.told() == first == ["Not to them."]


def test_two_questions_of_a_response_are_asked_at_once_after_its_reads() -> None:
    clerk = needing_approval(TWO_MAILS_AND_A_READ, says("Done."))
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    assert [question.key for question in questions(run)] == ["tool:1:w1?", "tool:1:w2?"]
    assert clerk.done == ["look 1"]
    decide(run, "tool:1:w2?", approved=False)
    assert reread(run).status == RunStatus.WAITING_FOR_APPROVAL
    decide(run, "tool:1:w1?")
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert clerk.done == ["look 1", "send x"]
    assert len(clerk.model.asked) == 2


def validated(ctx: RunContext[None], to: str, copies: int = 1) -> None:
    if copies > 9:
        raise ModelRetry("too many copies")


def asking(*turns: Any, failures: Any = None) -> tuple[Scripted, list[str]]:
    """Register an agent that asks which one it is, and that sends with an approval."""
    model, done = Scripted(*turns, failures=failures), list[str]()
    agent: Agent[None, str] = Agent(model.model, name="clerk")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def which() -> str:
        return str(await ask_person("Which?"))

    @agent.tool_plain(requires_approval=True, args_validator=validated)
    async def send(to: str, copies: int = 1) -> str:
        done.append(to)
        return "sent"

    register_agent("clerk", agent)
    return model, done


def test_questions_and_approvals_of_one_response_park_the_run_once() -> None:
    response = calls(called("which", "q1"), called("send", "w1", to="x"), called("which", "q2"))
    failing = {1: [ModelHTTPError(503, "scripted")]}
    _model, done = asking(response, says("Done."), failures=failing)
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    assert {one.key for one in questions(run)} == {"tool:1:w1?", "tool:1:q1?1", "tool:1:q2?1"}
    api.submit_input(run.uuid, "tool:1:q1?1", "this", by="ann")
    decide(run, "tool:1:w1?")
    assert reread(run).status == RunStatus.WAITING_FOR_INPUT
    api.submit_input(run.uuid, "tool:1:q2?1", "that", by="ann")
    run = execute(run)
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["x"]
    assert run.history().filter(kind=EventKind.PARKED).count() == 1


def test_a_denial_beside_a_question_is_told_and_the_question_is_answered() -> None:
    _model, done = asking(calls(called("which", "q1"), called("send", "w1", to="x")), says("Done."))
    run = execute(accept("clerk"))
    decide(run, "tool:1:w1?", approved=False)
    api.submit_input(run.uuid, "tool:1:q1?1", "this", by="ann")
    run = execute(run)
    assert (run.status, done) == (RunStatus.COMPLETED, []), run.error_message


@pytest.mark.parametrize("copies", ["many", 10], ids=["no number", "refused by its validator"])
def test_a_call_whose_arguments_are_refused_is_not_asked_about_beside_a_question(
    copies: Any,
) -> None:
    refused = calls(called("which", "q1"), called("send", "w1", to="x", copies=copies))
    model, done = asking(refused, says("Done."))
    run = execute(accept("clerk"))
    assert [one.key for one in questions(run)] == ["tool:1:q1?1"]
    api.submit_input(run.uuid, "tool:1:q1?1", "this", by="ann")
    run = execute(run)
    assert (run.status, done) == (RunStatus.COMPLETED, []), run.error_message
    assert len(model.asked) == 2


def test_an_approval_does_not_hold_for_what_the_arguments_have_become() -> None:
    """The tool has another default now: what would run is not what was shown."""
    clerk = needing_approval(calls(called("send", "w1", to="x")), says("Done."))
    run = execute(accept("clerk"))
    decide_all(run)

    async def send(to: str, copies: int = 2) -> str:
        raise AssertionError

    changed: Agent[None, str] = Agent(clerk.model.model, name="clerk", tools=[send])
    registration._agents.clear()
    registry._agents.pop("clerk")
    register_agent("clerk", changed, effects={"send": Declaration(WRITE, needs_approval=True)})
    run = execute(run)
    assert (run.status, run.error_class) == (RunStatus.FAILED, "JournalMismatch")
    assert clerk.done == []


def test_a_failure_of_the_next_request_repeats_neither_question_nor_write() -> None:
    failing = {1: [ModelHTTPError(503, "scripted"), ModelHTTPError(503, "scripted")]}
    clerk = needing_approval(TWO_MAILS_AND_A_READ, says("Done."), failures=failing)
    run = execute(accept("clerk"))
    decide_all(run)
    for _ in range(2):
        run = execute(run)
        assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert sorted(clerk.done) == ["look 1", "send x", "send y"]
    assert [key for key in keys(run) if key.endswith("?")] == ["tool:1:w1?", "tool:1:w2?"]


def test_pydantic_ais_own_approving_handler_gives_no_approval() -> None:
    from pydantic_ai.capabilities import HandleDeferredToolCalls

    model = Scripted(calls(called("send", "w1", to="x")), says("Done."))
    agent: Agent[None, str] = Agent(
        model.model,
        name="clerk",
        capabilities=[
            HandleDeferredToolCalls(
                handler=lambda ctx, asked: asked.build_results(approve_all=True)
            )
        ],
    )

    @agent.tool_plain(requires_approval=True)
    async def send(to: str) -> str:
        return "sent"

    register_agent("clerk", agent)
    assert execute(accept("clerk")).status == RunStatus.WAITING_FOR_APPROVAL


def test_a_read_may_ask_for_its_approval_itself() -> None:
    model = Scripted(calls(called("look", "r1", secret=True)), says("Done."))
    agent: Agent[None, str] = Agent(model.model, name="clerk")
    done: list[bool] = []

    @agent.tool
    @effect(ToolEffect.READ_ONLY)
    async def look(ctx: RunContext[None], secret: bool) -> str:
        if secret and not ctx.tool_call_approved:
            raise ApprovalRequired
        done.append(secret)
        return "seen"

    register_agent("clerk", agent)
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    decide_all(run)
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == [True]


def test_a_setting_asks_about_writes_and_not_about_reads(settings_for_runs: Any) -> None:
    settings_for_runs.AGENTRUNS = {**settings_for_runs.AGENTRUNS, "WRITES_NEED_APPROVAL": True}
    clerk = Clerk(TWO_MAILS_AND_A_READ, says("Done."))
    run = execute(accept("clerk"))
    assert len(questions(run)) == 2
    assert clerk.done == ["look 1"]


def test_arguments_that_do_not_validate_are_refused_before_anybody_is_asked() -> None:
    clerk = needing_approval(
        calls(called("send", "w1", to="x", copies="many")),
        calls(called("send", "w2", to="x", copies="2")),
        says("Done."),
    )
    run = execute(accept("clerk"))
    (question,) = questions(run)
    assert question.key == "tool:2:w2?"
    assert arguments(question) == {"to": "x", "copies": 2}, "what will run, not what was written"
    decide_all(run)
    assert execute(run).status == RunStatus.COMPLETED
    assert clerk.done == ["send x"]


def test_events_are_not_repeated_when_a_parked_run_goes_on() -> None:
    seen: list[str] = []

    async def handler(ctx: Any, events: Any) -> None:
        async for event in events:
            call_id = getattr(event, "tool_call_id", "")
            if event.event_kind.startswith("function_tool"):
                seen.append(f"{event.event_kind} {call_id}")

    async def stream(messages: list[Any], info: Any) -> Any:
        if len(messages) > 1:
            yield "Done."
            return
        for index, (name, call_id, said) in enumerate(
            [("look", "r1", '{"n": 1}'), ("send", "w1", '{"to": "x"}')]
        ):
            yield {index: DeltaToolCall(name=name, json_args=said, tool_call_id=call_id)}

    clerk = needing_approval(event_stream_handler=handler)
    clerk.agent.model = FunctionModel(stream_function=stream)
    run = execute(accept("clerk"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    decide_all(run)
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert clerk.done == ["look 1", "send x"]
    assert sorted(seen) == [
        "function_tool_call r1",
        "function_tool_call w1",
        "function_tool_result r1",
        "function_tool_result w1",
    ]
