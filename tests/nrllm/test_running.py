"""What a run is given and what it gives back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import UsageLimits

from agentruns.api import Completed, run
from agentruns.enums import RunStatus, TerminationReason
from agentruns.models import AgentRun
from nrllm import RunInfo, ToolEffect, effect, idempotency_key, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, keys, output, says
from tests.project.models import LedgerEntry

pytestmark = pytest.mark.usefixtures("settings_for_runs")


@dataclass
class Shop:
    name: str


def shop_agent(model: Scripted) -> Agent[Shop, str]:
    agent = Agent(model.model, name="a", deps_type=Shop)

    @agent.tool(metadata={"effect": "read_only"})
    async def which(ctx: RunContext[Shop]) -> str:
        return ctx.deps.name

    return agent


def two_turns(**options: Any) -> Scripted:
    return Scripted(calls(called("which", "a")), says("ok"), **options)


def test_deps_are_built_for_each_segment_and_never_stored() -> None:
    model = two_turns(failures={1: [ModelHTTPError(503, "m")]})
    infos: list[RunInfo] = []

    def deps(info: RunInfo) -> Shop:
        infos.append(info)
        return Shop(f"shop of {AgentRun.objects.count()} runs")

    register_agent("a", shop_agent(model), deps=deps, version="7")
    accepted = accept("a", {"prompt": "hi", "shop": 3})
    execute(execute(accepted))
    assert len(infos) == 2
    assert infos[0].request == {"prompt": "hi", "shop": 3}
    assert infos[0].uuid == accepted.uuid
    assert infos[0].agent_version == "7"
    assert "shop of 1 runs" in str(model.asked[-1]), "a synchronous factory may use the ORM"


async def async_deps(info: RunInfo) -> Shop:
    return Shop("async")


def test_an_asynchronous_factory() -> None:
    model = two_turns()
    register_agent("a", shop_agent(model), deps=async_deps)
    execute(accept("a"))
    assert "async" in str(model.asked[-1])


def test_a_factory_that_cleans_up() -> None:
    model = two_turns()
    closed: list[str] = []

    @contextlib.asynccontextmanager
    async def deps(info: RunInfo) -> AsyncIterator[Shop]:
        yield Shop("open")
        closed.append("closed")

    register_agent("a", shop_agent(model), deps=deps)
    execute(accept("a"))
    assert "open" in str(model.asked[-1])
    assert closed == ["closed"]


def test_an_agent_is_built_for_each_segment_by_a_function() -> None:
    model = two_turns(failures={1: [ModelHTTPError(503, "m")]})
    built: list[int] = []

    def build() -> Agent[Shop, str]:
        built.append(1)
        return shop_agent(model)

    register_agent("a", build, deps=async_deps)
    at_registration = len(built)
    finished = execute(execute(accept("a")))
    assert finished.status == RunStatus.COMPLETED, finished.error_message
    assert len(built) == at_registration + 2


def test_message_history() -> None:
    model = Scripted(says("no"), says("as before"))
    register_agent("a", Agent(model.model, name="a"))
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("earlier")]), says("I see.")]
    dumped = ModelMessagesTypeAdapter.dump_python(history, mode="json")
    finished = execute(accept("a", {"prompt": "and now?", "message_history": dumped}))
    assert output(finished) == "as before"
    assert "earlier" in str(model.asked[0])


def test_a_prompt_of_several_parts() -> None:
    model = Scripted(says("nice"))
    register_agent("a", Agent(model.model, name="a"))
    image = {"kind": "image-url", "url": "https://example.org/cat.png"}
    finished = execute(accept("a", {"prompt": ["what is this?", image]}))
    assert output(finished) == "nice"
    assert "cat.png" in str(model.asked[0])


class Answer(BaseModel):
    text: str
    score: float


def test_structured_output_is_json() -> None:
    final = ToolCallPart("final_result", {"text": "late", "score": 0.5}, tool_call_id="f")
    model = Scripted(calls(final))
    register_agent("a", Agent(model.model, name="a", output_type=Answer))
    assert output(execute(accept("a"))) == {"text": "late", "score": 0.5}


def test_too_many_rounds() -> None:
    model = two_turns()
    register_agent(
        "a", shop_agent(model), deps=async_deps, usage_limits=UsageLimits(request_limit=1)
    )
    finished = execute(accept("a"))
    assert finished.status == RunStatus.FAILED
    assert finished.termination_reason == TerminationReason.MAX_ITERATIONS


def test_a_budget_that_is_used_up() -> None:
    model = two_turns()
    register_agent(
        "a", shop_agent(model), deps=async_deps, usage_limits=UsageLimits(tool_calls_limit=0)
    )
    finished = execute(accept("a"))
    assert finished.status == RunStatus.FAILED
    assert finished.termination_reason == TerminationReason.BUDGET_EXHAUSTED


def test_a_synchronous_run_gives_the_output() -> None:
    register_agent("a", Agent(Scripted(says("ok")).model, name="a"))
    end = run("a", "hi")
    assert isinstance(end, Completed)
    assert end.output == "ok"


def test_the_run_id_of_pydantic_ai_is_the_runs_uuid() -> None:
    seen: list[str | None] = []
    model = Scripted(calls(called("which", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool(metadata={"effect": "read_only"})
    async def which(ctx: RunContext[object]) -> None:
        seen.append(ctx.run_id)

    register_agent("a", agent)
    accepted = accept("a")
    execute(accepted)
    assert seen == [str(accepted.uuid)]


def test_idempotency_keys_differ_between_calls_and_are_known_in_threads() -> None:
    seen: list[str] = []
    model = Scripted(
        calls(called("send", "a"), called("send", "b"), called("asend", "c")), says("ok")
    )
    agent = Agent(model.model, name="a")

    def send() -> None:
        seen.append(idempotency_key())

    async def asend() -> None:
        seen.append(idempotency_key())

    agent.tool_plain(send)
    agent.tool_plain(asend)
    register_agent("a", agent)
    execute(accept("a"))
    assert len(set(seen)) == 3
    with pytest.raises(LookupError):
        idempotency_key()


def test_a_synchronous_write_may_use_the_orm_and_leaves_no_connection() -> None:
    import threading

    threads: list[threading.Thread] = []
    model = Scripted(calls(called("note", "a")), says("ok"))
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    def note() -> int:
        threads.append(threading.current_thread())
        LedgerEntry.objects.create(
            run="00000000-0000-0000-0000-000000000001", idempotency_key=idempotency_key(), amount=1
        )
        return LedgerEntry.objects.count()

    register_agent("a", agent)
    finished = execute(accept("a"))
    assert finished.status == RunStatus.COMPLETED, finished.error_message
    assert threads[0] is not threading.main_thread()
    threads[0].join(60)
    assert not threads[0].is_alive(), "a write's thread ends with it"


@pytest.mark.parametrize("kind", list(ToolEffect))
def test_a_stop_iteration_of_a_synchronous_tool_ends_its_segment(kind: ToolEffect) -> None:
    agent = Agent(Scripted(calls(called("first", "a"))).model, name="a")

    @agent.tool_plain
    @effect(kind)
    def first() -> str:
        return str(next(iter(())))

    register_agent("a", agent)
    run = execute(accept("a"))
    assert "StopIteration" in run.error_message
    assert run.status == RunStatus.FAILED


def test_calls_with_one_id_are_told_apart_from_each_other_and_from_every_other_id() -> None:
    done: list[int] = []
    model = Scripted(
        calls(called("send", "a", n=1), called("send", "a", n=2), called("send", "a#2", n=3)),
        says("ok"),
        failures={1: [ModelHTTPError(503, "m")]},
    )
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    async def send(n: int) -> None:
        done.append(n)

    register_agent("a", agent)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == [1, 2, 3]
    assert keys(run) == ["model:1", "tool:1:a", "tool:1:a#3", "tool:1:a#2", "model:2"]


def test_headers_that_differ_in_each_attempt_are_no_other_request() -> None:
    numbers = count(1)
    model = two_turns(failures={1: [ModelHTTPError(503, "m")]})

    def traced(ctx: Any) -> ModelSettings:
        return ModelSettings(extra_headers={"traceparent": str(next(numbers))})

    agent = Agent(model.model, name="a", model_settings=traced)

    @agent.tool_plain(metadata={"effect": "read_only"})
    def which() -> str:
        return "this"

    register_agent("a", agent)
    run = execute(execute(accept("a")))
    assert (run.status, output(run)) == (RunStatus.COMPLETED, "ok"), run.error_message
