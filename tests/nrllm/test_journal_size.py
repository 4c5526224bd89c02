from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Sum
from django.db.models.functions import Length
from pydantic_ai import Agent
from pydantic_ai.usage import RequestUsage, UsageLimits

from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import Step
from nrllm import effect, register_agent
from tests.nrllm.support import Scripted, accept, called, calls, execute, says

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def journal_bytes(rounds: int, size: int) -> int:
    """Run an agent that reads `size` bytes in each of so many rounds; what its journal takes."""
    turns = [calls(called("read", f"r{n}", n=n)) for n in range(rounds)]
    for turn in turns:
        turn.usage = RequestUsage(input_tokens=1)  # else it is estimated, in longer and longer time
    agent: Agent[Any, str] = Agent(Scripted(*turns, says("Done.")).model, name="reader")

    @agent.tool_plain
    @effect(ToolEffect.READ_ONLY)
    async def read(n: int) -> str:
        return "x" * size

    name = f"reader-{rounds}"
    register_agent(name, agent, usage_limits=UsageLimits(request_limit=rounds + 1))
    run = execute(accept(name))
    assert run.status == RunStatus.COMPLETED, run.error_message
    steps = Step.objects.filter(run=run)
    columns = {"stored": Sum(Length("result")), "asked": Sum(Length("arguments"))}
    sums = steps.aggregate(**columns)
    return int(sums["stored"] or 0) + int(sums["asked"] or 0)


def test_a_journal_grows_in_proportion_to_its_steps_and_not_to_their_square() -> None:
    size = 200_000
    short, long = journal_bytes(5, size), journal_bytes(20, size)
    assert 5 * size < short < 5 * size + 10_000
    assert 20 * size < long < 20 * size + 40_000


@pytest.mark.sqlite
@pytest.mark.timeout(300)
def test_fifty_results_of_a_megabyte_take_fifty_megabytes() -> None:
    size = 1_000_000
    assert 50 * size < journal_bytes(50, size) < 50 * size + 100_000
