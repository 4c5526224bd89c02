"""Each way past the fence: refused when the agent is registered, or before anything is stamped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import modify_settings
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    FunctionToolset,
    NativeOutput,
    RunContext,
    TextOutput,
    Tool,
    ToolOutput,
)
from pydantic_ai.capabilities import (
    DynamicCapability,
    Hooks,
    NativeTool,
    ProcessEventStream,
    RequestInput,
    SelectModel,
)
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.native_tools import MCPServerTool, WebSearchTool
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset

from agentruns import api, registry, tasks
from agentruns.enums import RunStatus, TerminationReason, ToolEffect
from agentruns.fields import Payload
from agentruns.models import AgentRun
from nrllm import Answer, Declaration, effect, register_agent
from nrllm.durability import RunDurability
from nrllm.exceptions import AgentRefused, RequestRefused
from nrllm.registration import durable_agents
from nrllm.tools import is_async
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    output,
    says,
    steps,
)
from tests.servers.process import ROOT

pytestmark = pytest.mark.usefixtures("settings_for_runs")


class Said(BaseModel):
    text: str


def acts(answer: str) -> str:
    return answer


@effect(ToolEffect.READ_ONLY)
def computes(answer: str) -> str:
    return answer.upper()


class OwnToolset(AbstractToolset[Any]):
    @property
    def id(self) -> str:
        return "own"

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        return {}

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        raise AssertionError


def test_a_toolset_of_its_own_kind_is_refused() -> None:
    agent = Agent("test", name="a", toolsets=[OwnToolset()])
    with pytest.raises(AgentRefused, match="FunctionToolset"):
        register_agent("a", agent)


@pytest.mark.parametrize(
    "output_type",
    [acts, [Said, acts], ToolOutput(acts), TextOutput(acts), NativeOutput(acts)],
    ids=["function", "list", "ToolOutput", "TextOutput", "NativeOutput"],
)
def test_an_output_function_is_refused(output_type: Any) -> None:
    agent = Agent("test", name="a", output_type=output_type)
    with pytest.raises(AgentRefused, match="acts"):
        register_agent("a", agent)


def test_an_output_function_that_only_computes_is_allowed() -> None:
    model = Scripted(says("late"))
    register_agent("a", Agent(model.model, name="a", output_type=TextOutput(computes)))
    assert output(execute(accept("a"))) == "LATE"


def test_an_output_function_declared_to_read_by_the_mapping_is_allowed() -> None:
    agent = Agent(Scripted(says("late")).model, name="a", output_type=TextOutput(acts))
    register_agent("a", agent, effects={"acts": ToolEffect.READ_ONLY})
    assert output(execute(accept("a"))) == "late"


def test_another_durable_engine_is_refused() -> None:
    class Other(RunDurability):
        def __init__(self) -> None:
            pass

        def for_agent(self, agent: Any) -> Any:
            return self

    agent = Agent("test", name="a", capabilities=[Other()])
    with pytest.raises(AgentRefused, match="durable engine"):
        register_agent("a", agent)


async def handler(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


def test_an_event_handler_of_the_agent_is_refused() -> None:
    agent = Agent("test", name="a", capabilities=[ProcessEventStream(handler)])
    with pytest.raises(AgentRefused, match="register_agent"):
        register_agent("a", agent)


def test_a_name_is_given_to_one_agent() -> None:
    register_agent("a", Agent("test", name="a"))
    with pytest.raises(ValueError, match=rf"registered already, in {__name__}, line \d+$"):
        register_agent("a", Agent("test", name="b"))


def test_the_same_agent_registered_again_replaces_itself() -> None:
    agent = Agent("test", name="a")
    register_agent("a", agent)
    again = register_agent("a", agent, version="2")
    assert durable_agents() == (again,)
    assert registry.served()["a"] == "2"


def test_a_builder_registered_again_replaces_itself() -> None:
    def build() -> Agent[None, str]:
        return Agent("test", name="a")

    register_agent("a", build)
    register_agent("a", build, version="2")
    assert registry.served()["a"] == "2"


def test_an_agent_without_a_model_is_refused() -> None:
    with pytest.raises(AgentRefused, match="has no model"):
        register_agent("a", Agent(name="a"))


def test_an_agent_whose_capability_gives_it_a_model_is_taken() -> None:
    register_agent("a", Agent(name="a", capabilities=[SelectModel(lambda ctx: "test")]))


async def make() -> Agent[None, str]:
    raise AssertionError


@pytest.mark.parametrize("given", ["clerk", None, 3, make])
def test_what_is_no_agent_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"the agent 'a' is .*: give an agent, or a plain function"):
        register_agent("a", given)


def test_swapped_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="takes a name, then an agent; the name is of type Agent"):
        register_agent(Agent("test"), "a")  # type: ignore[arg-type]


def test_a_builder_that_gives_no_agent_is_named() -> None:
    def clerk() -> Any:
        return 3

    said = r"clerk\(\), which is to build the agent 'a', returned a value of type int"
    with pytest.raises(TypeError, match=said):
        register_agent("a", clerk)


def test_an_effect_that_is_none_is_refused() -> None:
    said = "the tool 't' of the agent 'a': 'harmless' is no effect: use one of read_only, "
    with pytest.raises(ValueError, match=said):
        register_agent("a", Agent("test", name="a"), effects={"t": "harmless"})  # type: ignore[dict-item]


@pytest.mark.parametrize("declare", [effect, Declaration])
def test_a_declaration_of_an_effect_that_is_none_is_refused(declare: Any) -> None:
    with pytest.raises(ValueError, match="'harmless' is no effect: use one of read_only, "):
        declare("harmless")


def test_a_decorator_without_an_effect_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@effect of 'make' names no effect"):
        effect(make)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["nrllm", "agentruns"])
def test_an_agent_is_refused_without_the_apps_that_it_needs(missing: str) -> None:
    with (
        modify_settings(INSTALLED_APPS={"remove": missing}),
        pytest.raises(ImproperlyConfigured, match=f"add '{missing}' to INSTALLED_APPS"),
    ):
        register_agent("a", Agent("test", name="a"))


def writing(where: str, declared: ToolEffect | None) -> FunctionToolset[Any]:
    toolset = FunctionToolset[Any](id="desk", timeout=5 if where == "toolset" else None)

    @toolset.tool_plain(
        timeout=5 if where == "tool" else None,
        metadata=None if declared is None else {"effect": declared},
    )
    async def write() -> str:
        raise AssertionError

    return toolset


@pytest.mark.parametrize("where", ["tool", "toolset", "agent"])
@pytest.mark.parametrize("declared", [None, ToolEffect.IDEMPOTENT_WRITE])
def test_a_timeout_on_a_write_is_refused(where: str, declared: ToolEffect | None) -> None:
    timeout = 5 if where == "agent" else None
    agent = Agent("test", name="a", toolsets=[writing(where, declared)], tool_timeout=timeout)
    if where == "agent":

        @agent.tool_plain
        async def write_too() -> None: ...

    with pytest.raises(AgentRefused, match="has a timeout of 5 s"):
        register_agent("a", agent)


@pytest.mark.parametrize("where", ["tool", "toolset"])
@pytest.mark.parametrize("declared", [None, ToolEffect.IDEMPOTENT_WRITE])
def test_one_that_was_added_after_the_registration_is_refused_before_the_stamp(
    where: str, declared: ToolEffect | None
) -> None:
    model = Scripted(calls(called("write", "a")), says("ok"))
    toolsets: list[FunctionToolset[Any]] = []
    register_agent("a", lambda: Agent(model.model, name="a", toolsets=toolsets))
    toolsets.append(writing(where, declared))
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.pending_effect == ""
    assert "timeout" in run.error_message
    assert [step.kind for step in steps(run)] == ["model"]


def test_a_timeout_on_a_read_is_allowed() -> None:
    model = Scripted(calls(called("read", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain(timeout=5, metadata={"effect": "read_only"})
    async def read() -> str:
        return "done"

    register_agent("a", agent)
    assert execute(accept("a")).status == RunStatus.COMPLETED


def test_a_native_tool_that_acts_is_refused() -> None:
    server = MCPServerTool(id="mail", url="https://mail.example/mcp")
    agent = Agent("test", name="a", capabilities=[NativeTool(server)])
    with pytest.raises(AgentRefused, match="MCPToolset"):
        register_agent("a", agent)


def test_a_native_tool_that_reads_is_allowed() -> None:
    agent = Agent("test", name="a", capabilities=[NativeTool(WebSearchTool())])
    assert register_agent("a", agent).agent is agent


def test_an_asynchronous_transactional_write_is_refused() -> None:
    agent = Agent("test", name="a")

    @agent.tool_plain(metadata={"effect": "transactional_write"})
    async def write() -> str:
        raise AssertionError

    with pytest.raises(AgentRefused, match="plain `def`"):
        register_agent("a", agent)


def awaiting(function: Any) -> Any:
    @wraps(function)
    async def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Awaiting:
    async def __call__(self) -> str:
        raise AssertionError


async def awaited(answer: str) -> str:
    raise AssertionError


def forwarding(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    "function", [awaiting(acts), forwarding(awaited)], ids=["wrapper", "wrapped"]
)
def test_a_transactional_write_that_is_asynchronous_in_some_layer_is_refused(function: Any) -> None:
    tool = Tool(function, metadata={"effect": "transactional_write"})
    with pytest.raises(AgentRefused, match="plain `def`"):
        register_agent("a", Agent("test", name="a", tools=[tool]))


@pytest.mark.parametrize(
    "function", [Awaiting(), partial(awaited, answer="x")], ids=["object", "partial"]
)
def test_an_object_that_is_called_asynchronously_is_seen(function: Any) -> None:
    assert is_async(function)


class CallsByItself(FunctionToolset[Any]):
    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        function: Any = self.tools[name].function
        return function(**tool_args)


def test_a_transactional_write_that_ran_outside_its_transaction_is_not_recorded() -> None:
    toolset = CallsByItself(id="own")
    toolset.add_function(acts, metadata={"effect": "transactional_write"})
    model = Scripted(calls(called("acts", "a", answer="x")), says("ok"))
    register_agent("a", Agent(model.model, name="a", toolsets=[toolset]))
    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused")
    assert "did not run in its transaction" in run.error_message
    assert [step.kind for step in steps(run)] == ["model"]


def test_a_hook_can_not_turn_a_refusal_into_a_result() -> None:
    hooks: Hooks[Any] = Hooks()

    @hooks.on.tool_execute_error
    async def swallow(ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Any) -> str:
        return "never mind"

    model = Scripted(calls(called("write", "a")), says("ok"))
    agent = Agent(model.model, name="a", capabilities=[hooks])
    register_agent("a", agent)

    @agent.tool_plain(timeout=5)
    async def write() -> str:
        raise AssertionError

    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert len(model.asked) == 1


OPT_OUTS = {
    "another engine's key": {"temporal": False, "dbos": False, "prefect": False, "durable": False},
    "our own key": {"nrllm": False},
    "our own note": {"nrllm": {"name": "write", "said": [["forged", "read_only"] + [False] * 3]}},
    "a config": {"activity_config": False, "step_config": False, "task_config": False},
}


@pytest.mark.parametrize("metadata", OPT_OUTS.values(), ids=OPT_OUTS.keys())
def test_no_tool_can_opt_out_of_its_fence(metadata: dict[str, Any]) -> None:
    model = Scripted(calls(called("write", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain(metadata=metadata)
    async def write() -> str:
        raise ConnectionResetError

    register_agent("a", agent)
    assert fenced(execute(accept("a"))).name == "write"


def test_no_http_client_of_ours_could_repeat_a_request_unseen() -> None:
    clients = re.compile(
        r"^\s*(?:import|from) (?:httpx|requests|aiohttp|urllib\.request|http\.client)\b",
        re.MULTILINE,
    )
    files = [*(ROOT / "nrllm").rglob("*.py"), *(ROOT / "agentruns").rglob("*.py")]
    # The kit for tests talks to its witness, and to nobody else.
    sources = [file for file in files if "testing" not in file.parts]
    assert len(sources) > 50
    assert [file.name for file in sources if clients.search(file.read_text())] == []


def test_an_external_tool_is_refused() -> None:
    toolset: ExternalToolset[Any] = ExternalToolset([ToolDefinition(name="ship")], id="outside")
    agent = Agent("test", name="a", toolsets=[toolset.prefixed("x")])
    with pytest.raises(AgentRefused, match="ask_person"):
        register_agent("a", agent)


def test_a_tool_that_becomes_external_in_a_run_is_refused_there() -> None:
    model = Scripted(calls(called("ship", "s1")), says("ok"))

    async def outside(ctx: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
        return replace(definition, kind="external")

    def ship() -> None:
        raise AssertionError

    agent = Agent(model.model, name="a", tools=[Tool(ship, prepare=outside)])
    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused")
    assert "ship" in run.error_message
    assert model.asked == []


@pytest.mark.parametrize(
    "output_type",
    [[str, DeferredToolRequests], str | DeferredToolRequests],
    ids=["list", "union"],
)
def test_an_output_of_deferred_calls_is_refused(output_type: Any) -> None:
    agent = Agent("test", name="a", output_type=output_type)
    with pytest.raises(AgentRefused, match="park the run"):
        register_agent("a", agent)


def test_a_request_for_input_of_pydantic_ais_own_is_refused() -> None:
    agent = Agent("test", name="a", capabilities=[RequestInput(ask=lambda *asked: None)])
    with pytest.raises(AgentRefused, match="submit_input"):
        register_agent("a", agent)


@pytest.mark.parametrize("made", [ProcessEventStream, RequestInput], ids=lambda made: made.__name__)
def test_a_capability_that_only_a_run_makes_is_refused_there(made: Any) -> None:
    async def handler(*given: Any) -> None:
        raise AssertionError

    model = Scripted(says("never"))
    dynamic = DynamicCapability(lambda ctx: made(handler), id="dynamic")
    register_agent("a", Agent(model.model, name="a", capabilities=[dynamic]))
    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused")
    assert made.__name__ in run.error_message
    assert model.asked == []


def test_a_read_that_defers_itself_fails_the_run_and_says_what_to_do() -> None:
    model = Scripted(calls(called("ship", "s1")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def ship() -> None:
        raise CallDeferred

    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused")
    assert "ask_person" in run.error_message


def test_a_verification_that_no_other_worker_could_make_is_refused() -> None:
    model = Scripted(calls(called("pay", "p1")), says("ok"))
    agent = Agent(model.model, name="a")
    register_agent("a", agent)

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, verify=lambda doubt: Answer.unknown())
    async def pay() -> None:
        raise AssertionError

    run = execute(accept("a"))
    assert (run.status, run.error_class) == (RunStatus.FAILED, "AgentRefused")
    assert "effects={'pay'" in run.error_message
    assert model.asked == []


PENDING = {
    "kind": "response",
    "parts": [{"part_kind": "tool-call", "tool_name": "pay", "args": {"amount": 1}}],
}


@pytest.mark.parametrize(
    "request_",
    [None, 3, [], {}, {"prompt": 3}, {"message_history": "x"}, {"message_history": [PENDING]}],
)
def test_a_request_that_is_no_prompt_is_not_accepted(request_: Any) -> None:
    register_agent("a", Agent(Scripted().model, name="a"))
    for ask in (api.enqueue, api.run, tasks.enqueue):
        with pytest.raises(RequestRefused, match="the request"):
            ask("a", request_)
    with pytest.raises(CommandError, match="the request"):
        call_command("enqueue_agent_run", "a", request=json.dumps(request_))
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize("request_", [None, {"prompt": 3}])
def test_a_request_that_another_version_accepted_fails_the_run(request_: Any) -> None:
    model = Scripted(says("ok"))
    register_agent("a", Agent(model.model, name="a"))
    run, _created = AgentRun.objects.enqueue("a", Payload.of(request_))
    run = execute(run)
    assert run.status == RunStatus.FAILED
    assert run.termination_reason == TerminationReason.NOT_RETRYABLE
    assert run.error_class == "RequestRefused"
    assert model.asked == []


ACTING = {"type": "mcp", "server_label": "bank", "server_url": "https://bank.example/mcp"}
BY_SETTINGS = [
    {"openai_native_tools": [ACTING]},
    {"extra_body": {"tools": [ACTING]}},
    {"extra_body": {"mcp_servers": [{"type": "url", "url": "https://bank.example/mcp"}]}},
]


@pytest.mark.parametrize("brought", BY_SETTINGS, ids=["setting", "tools", "mcp_servers"])
@pytest.mark.parametrize("where", ["agent", "model", "run"])
def test_a_native_tool_that_acts_is_refused_in_settings_too(brought: Any, where: str) -> None:
    model = Scripted(says("paid"))
    if where == "model":
        model.model._settings = brought
    given = {"agent": brought, "run": lambda ctx: brought}.get(where)
    agent: Agent[None, str] = Agent(model.model, name="a", model_settings=given)
    if where != "run":
        with pytest.raises(AgentRefused, match="may act inside a model request"):
            register_agent("a", agent)
        return
    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, model.asked) == (RunStatus.FAILED, [])
    assert "may act inside a model request" in run.error_message


@pytest.mark.parametrize("kind", ["web_search_preview", "function", "file_search"])
def test_native_tools_that_read_are_allowed_in_settings(kind: str) -> None:
    settings: Any = {"openai_native_tools": [{"type": kind}]}
    durable = register_agent("a", Agent("test", name="a", model_settings=settings))
    assert durable in durable_agents()


def test_toolsets_that_no_step_could_be_named_by_are_refused() -> None:
    def look() -> str:
        return "seen"

    with pytest.raises(AgentRefused, match="need to have a unique `id`"):
        register_agent("a", Agent("test", name="a", toolsets=[FunctionToolset([look])]))
    twice = [FunctionToolset([look], id="same"), FunctionToolset(id="same")]
    with pytest.raises(AgentRefused, match="have the same `id` 'same'"):
        register_agent("a", Agent("test", name="a", toolsets=twice))
    dynamic: Agent[None, str] = Agent("test", name="a")
    dynamic.toolset(lambda ctx: FunctionToolset([look]))
    with pytest.raises(AgentRefused, match="need to have a unique `id`"):
        register_agent("a", dynamic)


def test_a_write_that_asks_for_its_approval_by_an_exception_is_told_how_to() -> None:
    model = Scripted(calls(called("update", "a")), says("ok"))
    agent: Agent[None, str] = Agent(model.model, name="a")

    @agent.tool_plain
    def update() -> str:
        raise ApprovalRequired

    register_agent("a", agent)
    run = execute(accept("a"))
    fenced(run)
    assert "needs_approval=True" in run.error_message
