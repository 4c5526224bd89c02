"""What the agent's own hooks and fallbacks may do to a durable run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import AbstractCapability, Hooks, LocalWorkspace, ModelFallback
from pydantic_ai.capabilities.abstract import CapabilityOrdering
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import PreparedToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from agentruns import api
from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun
from nrllm import Declaration, PolicyDenied, effect, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, keys, output, says

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def overloaded() -> Exception:
    return ModelHTTPError(503, "m")


def test_a_hook_that_calls_a_write_twice_gets_the_first_answer_again() -> None:
    hooks: Hooks[Any] = Hooks()
    answers: list[Any] = []

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        answers.append(await handler(args))
        answers.append(await handler(args))
        return answers[-1]

    done: list[str] = []
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> int:
        done.append("send")
        return len(done)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send"]
    assert answers == [1, 1]


@pytest.mark.parametrize("metadata", [None, {"effect": "read_only"}], ids=["write", "read"])
def test_a_hook_that_calls_a_tool_twice_at_a_time_gets_one_answer(metadata: Any) -> None:
    hooks: Hooks[Any] = Hooks()
    answers: list[Any] = []

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        answers.extend(await asyncio.gather(handler(args), handler(args)))
        return answers[-1]

    done: list[str] = []
    model = Scripted(calls(called("act", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain(metadata=metadata)
    async def act() -> int:
        done.append("act")
        return len(done)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["act"]
    assert answers == [1, 1]


def test_a_call_that_code_makes_under_a_new_id_each_time_is_replayed() -> None:
    @dataclass
    class Dispatching(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            fresh = replace(ctx, tool_call_id=str(uuid4()))
            return await super().call_tool(name, tool_args, fresh, tool)

    done: list[str] = []

    def send() -> str:
        done.append("send")
        return "sent"

    model = Scripted(calls(called("send", "a")), says("ok"), failures={1: [overloaded()]})
    inner: FunctionToolset[Any] = FunctionToolset([send], id="inner")
    register_agent("a", Agent(model.model, name="a", toolsets=[Dispatching(inner)]))
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["send"]
    assert "call:1:send" in keys(run)


def test_a_hook_that_calls_a_write_again_with_other_arguments_is_refused() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def twice(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        await handler(args)
        return await handler({"to": "somebody else"})

    done: list[str] = []
    model = Scripted(calls(called("send", "a", to="x")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send(to: str) -> None:
        done.append(to)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert done == ["x"]
    assert "tool:1:a" in run.error_message


def test_a_hook_may_ask_again_for_a_read_that_failed() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute
    async def again(ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        try:
            return await handler(args)
        except ConnectionError:
            return await handler(args)

    done: list[str] = []
    model = Scripted(calls(called("read", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def read() -> str:
        done.append("read")
        if len(done) == 1:
            raise ConnectionError
        return "found"

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED
    assert done == ["read", "read"]


def test_a_hook_that_turns_an_error_into_a_result_can_not_hide_an_uncertain_write() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute_error
    async def swallow(ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Any) -> str:
        return "never mind"

    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> None:
        raise RuntimeError("broken")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.pending_effect == "non_idempotent_write"
    assert len(model.asked) == 1


@pytest.mark.parametrize("where", ["before_model_request", "after_model_request"])
def test_a_guardrail_ends_the_run_as_denied_by_policy(where: str) -> None:
    hooks: Hooks[Any] = Hooks()

    async def judge(ctx: Any, *request: Any, **more: Any) -> Any:
        raise PolicyDenied("not about that")

    getattr(hooks.on, where)(judge)
    done: list[str] = []
    model = Scripted(calls(called("send", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])

    @agent.tool_plain
    async def send() -> None:
        done.append("send")

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.termination_reason) == (RunStatus.FAILED, "policy_denied")
    assert "not about that" in run.error_message
    assert done == []


def fallback_agent(first: Scripted, second: Scripted, done: list[str]) -> Agent[None, str]:
    agent = Agent(first.model, name="a", capabilities=[ModelFallback(second.model)])

    @agent.tool_plain
    async def send() -> str:
        done.append("send")
        return "sent"

    return agent


def test_a_replay_takes_the_fallback_that_was_taken() -> None:
    done: list[str] = []
    first = Scripted(
        calls(called("send", "other")), says("no"), says("no"), failures={0: [overloaded()]}
    )
    second = Scripted(calls(called("send", "a")), says("ok"))
    first.failures[1] = [overloaded(), overloaded()]
    second.failures[1] = [ModelHTTPError(500, "m")]
    agent = fallback_agent(first, second, done)
    register_agent("a", agent, models={"second": second.model})

    run = execute(accept("a"))
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "ok"
    assert done == ["send"]
    assert len(first.asked) == 2, "a failure that was survived is replayed, not asked for again"
    assert {"model:1", "model:1#2"} <= set(keys(run))


def test_a_fallback_model_is_one_step() -> None:
    first = Scripted(says("no"), failures={0: [overloaded()]})
    second = Scripted(says("ok"))
    agent = Agent(FallbackModel(first.model, second.model), name="a")
    register_agent("a", agent)
    run = execute(accept("a"))
    assert output(run) == "ok"
    assert keys(run) == ["model:1"]


class Busy(Exception):
    pass


def test_a_replay_takes_the_fallback_for_an_error_of_the_applications_own() -> None:
    done: list[str] = []
    first = Scripted(says("no"), failures={0: [Busy("full")]})
    second = Scripted(calls(called("send", "a")), says("ok"), failures={1: [overloaded()]})
    first.failures[1] = [Busy("full"), Busy("full")]
    agent = Agent(
        first.model,
        name="a",
        capabilities=[ModelFallback(second.model, fallback_on=(Busy,))],
    )

    @agent.tool_plain
    async def send() -> str:
        done.append("send")
        return "sent"

    register_agent("a", agent, models={"second": second.model})
    run = execute(execute(accept("a")))
    assert (run.status, output(run)) == (RunStatus.COMPLETED, "ok"), run.error_message
    assert done == ["send"]


@dataclass
class Batch(WrapperToolset[Any]):
    """Offers one tool, which calls those that it wraps under the id of its own call."""

    names: tuple[str, ...] = ()

    async def get_tools(self, ctx: Any) -> dict[str, ToolsetTool[Any]]:
        self.inner = await super().get_tools(ctx)
        return {
            "batch": ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(name="batch"),
                max_retries=1,
                args_validator=SchemaValidator(core_schema.dict_schema()),
            )
        }

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        amount = {"amount": 5}
        return [
            await self.wrapped.call_tool(one, amount, ctx, self.inner[one]) for one in self.names
        ]


def bank(done: list[str]) -> FunctionToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset(id="bank")

    @toolset.tool_plain
    def debit(amount: int) -> str:
        done.append(f"debit {amount}")
        return "debited"

    @toolset.tool_plain
    def credit(amount: int) -> str:
        done.append(f"credit {amount}")
        return "credited"

    return toolset


def test_two_tools_that_code_calls_under_one_id_are_not_taken_for_one() -> None:
    done: list[str] = []
    model = Scripted(calls(called("batch", "a")), says("ok"))
    toolset = Batch(bank(done), names=("debit", "credit"))
    register_agent("a", Agent(model.model, name="a", toolsets=[toolset]))
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert "'debit' and of 'credit'" in run.error_message
    assert done == ["debit 5"]


@pytest.mark.parametrize("by", ["decorator", "mapping"])
def test_a_call_that_code_makes_waits_for_the_approval_that_its_tool_declares(by: str) -> None:
    done: list[str] = []
    declared = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE, needs_approval=True)
    toolset: FunctionToolset[Any] = FunctionToolset(id="bank")

    def pay(amount: int) -> str:
        done.append(f"pay {amount}")
        return "paid"

    toolset.add_function(
        effect(ToolEffect.NON_IDEMPOTENT_WRITE, needs_approval=True)(pay)
        if by == "decorator"
        else pay
    )
    model = Scripted(calls(called("batch", "a")), says("ok"))
    register_agent(
        "a",
        Agent(model.model, name="a", toolsets=[Batch(toolset, names=("pay",))]),
        effects={"pay": declared} if by == "mapping" else {},
    )
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.WAITING_FOR_APPROVAL, []), run.error_message
    decide(run, True)
    run = execute(run)
    assert (run.status, done) == (RunStatus.COMPLETED, ["pay 5"]), run.error_message


def decide(run: AgentRun, approved: bool) -> None:
    (question,) = run.journal().open_questions()
    api.decide(run.uuid, question.key, approved, by="boss", digest=question.digest)


def test_an_approval_is_asked_for_though_a_capability_makes_definitions_of_its_own() -> None:
    class Translating(AbstractCapability[Any]):
        def get_ordering(self) -> CapabilityOrdering:
            return CapabilityOrdering(position="outermost")

        def get_wrapper_toolset(self, toolset: Any) -> Any:
            async def translated(ctx: Any, tools: Any) -> Any:
                return [
                    ToolDefinition(name=one.name, parameters_json_schema=one.parameters_json_schema)
                    for one in tools
                ]

            return PreparedToolset(toolset, translated)

    done: list[str] = []
    model = Scripted(calls(called("pay", "a", amount=5)), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[Translating()])

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, needs_approval=True)
    def pay(amount: int) -> str:
        done.append(f"pay {amount}")
        return "paid"

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, done) == (RunStatus.WAITING_FOR_APPROVAL, []), run.error_message
    decide(run, True)
    assert execute(run).status == RunStatus.COMPLETED
    assert done == ["pay 5"]


def test_what_a_hook_does_in_the_workspace_is_not_taken_for_something_else(tmp_path: Path) -> None:
    noted = asyncio.Event()

    class Noting(AbstractCapability[Any]):
        async def after_tool_execute(
            self, ctx: Any, *, call: Any, tool_def: Any, args: Any, result: Any
        ) -> Any:
            await ctx.workspace.run(f"echo {call.tool_name} >> notes", shell=True)
            noted.set()
            return result

    model = Scripted(
        calls(called("slow", "a"), called("quick", "b")), says("ok"), failures={1: [overloaded()]}
    )
    agent = Agent(model.model, name="a", capabilities=[LocalWorkspace(tmp_path), Noting()])

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def slow() -> str:
        await noted.wait()
        return "slow"

    @agent.tool_plain(metadata={"effect": "read_only"})
    async def quick() -> str:
        return "quick"

    register_agent("a", agent)
    run = execute(accept("a"))
    notes = (tmp_path / "notes").read_text().split()
    assert notes == ["quick", "slow"]
    # Both reads are replayed at once, so that their hooks come in another order.
    run = execute(run)
    assert (run.status, run.error_class) == (RunStatus.FAILED, "JournalMismatch"), run.error_message
    assert "workspace.call" in run.error_message
    assert (tmp_path / "notes").read_text().split() == notes
