from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError

from agentruns.enums import RunStatus
from agentruns.reencryption import reencrypt
from nrllm import EffectNotApplied, ToolEffect, effect, register_agent
from nrllm.keys import StepKeys
from tests.agentruns.test_encryption import NEW, OLD, keys
from tests.nrllm.support import Scripted, accept, called, calls, execute, says, steps

pytestmark = pytest.mark.usefixtures("settings_for_runs")


def payer(done: list[str], model: Scripted, body: Any = lambda: "paid") -> None:
    agent = Agent(model.model, name="a", retries=3)

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, once_per_run=True)
    def pay(to: str) -> str:
        done.append(to)
        return str(body())

    register_agent("a", agent)


def test_the_same_call_under_another_id_is_answered_from_the_journal() -> None:
    done: list[str] = []
    model = Scripted(
        calls(called("pay", "a", to="x"), called("pay", "b", to="x")),
        calls(called("pay", "c", to="x"), called("pay", "d", to="y")),
        says("ok"),
        failures={2: [ModelHTTPError(503, "m")]},
    )
    payer(done, model)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["x", "y"]
    assert len([step for step in steps(run) if step.name == "pay"]) == 2
    assert str(model.asked[-1]).count("'paid'") == 4, "each call gets the answer"


def test_what_did_not_happen_may_be_done_again() -> None:
    done: list[str] = []

    def body() -> str:
        if len(done) == 1:
            raise EffectNotApplied("the bank is closed")
        return "paid"

    model = Scripted(
        calls(called("pay", "a", to="x")),
        calls(called("pay", "b", to="x")),
        calls(called("pay", "c", to="x")),
        says("ok"),
        failures={3: [ModelHTTPError(503, "m")]},
    )
    payer(done, model, body)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["x", "x"]


def test_another_run_pays_again() -> None:
    done: list[str] = []
    payer(done, Scripted(calls(called("pay", "a", to="x")), says("ok")))
    execute(accept("a"))
    execute(accept("a"))
    assert done == ["x", "x"]


def test_a_change_of_keys_leaves_the_call_known() -> None:
    """Its key in the journal is made from its arguments, and can't be guessed from them."""
    done: list[str] = []
    model = Scripted(
        calls(called("pay", "a", to="4711")),
        calls(called("pay", "b", to="4711")),
        says("ok"),
        failures={1: [ModelHTTPError(503, "m")]},
    )
    payer(done, model)
    with keys(OLD):
        run = execute(accept("a"))
        (paid,) = [step for step in steps(run) if step.name == "pay"]
        assert paid.key.startswith("once:pay:")
        assert paid.key != StepKeys().once("pay", {"to": "4711"}, 1)
    with keys(NEW, OLD):
        reencrypt()
    with keys(NEW):
        run = execute(run)
        assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == ["4711"]
