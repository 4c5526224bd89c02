"""docs/agents.md: its code is executed, and what it builds does what the page says."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import nrllm
from agentruns import api
from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun, Event
from agentruns.tasks import execute as work
from tests.factories import reread_by_uuid
from tests.markdown import Page
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    output,
    says,
    step_named,
)
from tests.project.models import LedgerEntry
from tests.servers.process import ROOT

PAGE = Page(ROOT / "docs/agents.md")


@dataclass
class Outside:
    """What the page leaves to its reader: a mailer, a bank, a feed and a model."""

    sent: list[tuple[str, str, str]] = field(default_factory=list)
    paid: dict[str, int] = field(default_factory=dict)
    fed: list[tuple[Any, ...]] = field(default_factory=list)
    breaks: int = 0

    async def send(self, to: str, text: str, message_id: str) -> None:
        self.sent.append((to, text, message_id))

    async def pay(self, amount: int, key: str) -> int:
        self.breaks -= 1
        if self.breaks >= 0:
            raise ConnectionResetError
        self.paid[key] = amount
        return amount

    def find(self, key: str) -> int | None:
        return self.paid.get(key)

    async def put(self, *said: Any) -> None:
        self.fed.append(said)


class Refund:
    class objects:
        @staticmethod
        def create(order: int, amount: int) -> None:
            key = f"refund-{order}"
            LedgerEntry.objects.create(run=AgentRun().uuid, idempotency_key=key, amount=amount)


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def page(
    outside: Outside, settings_for_runs: Any, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Execute every block, in the order of the page, as one module."""
    module = ModuleType("shop_agents")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    names.update(mailer=outside, bank=outside, feed=outside, Refund=Refund)
    for block in PAGE.blocks("python"):
        where = f"{PAGE.name}:{block.line}"
        exec(compile(block.content, where, "exec", dont_inherit=True), names)
    return names


def test_it_shows_an_agent_and_a_run(page: dict[str, Any], outside: Outside) -> None:
    letter = calls(
        called("look_up", "r1", order=7), called("send_email", "w1", to="x", text="Late.")
    )
    page["clerk"].model = Scripted(letter, says("I wrote.")).model
    run = execute(reread_by_uuid(page["accepted"].uuid))
    assert (run.status, output(run)) == (RunStatus.COMPLETED, "I wrote."), run.error_message
    key = step_named(run, "send_email").idempotency_key
    assert outside.sent == [("x", "Late.", key)]
    assert [event.id for event in page["history"]] == [Event.objects.filter(run=run).first().pk]  # type: ignore[union-attr]


def test_it_shows_keys_and_calls_that_the_model_repeats(
    page: dict[str, Any], outside: Outside
) -> None:
    again = calls(called("refund", "w1", order=7), called("refund", "w2", order=7))
    noted = calls(called("note_refund", "w3", order=7, amount=3))
    page["cashier"].model = Scripted(again, noted, says("Done.")).model
    run = execute(accept("cashier"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert list(outside.paid.values()) == [7]
    assert LedgerEntry.objects.get().amount == 3
    assert step_named(run, "note_refund").effect == ToolEffect.TRANSACTIONAL_WRITE


def test_it_shows_an_approval(page: dict[str, Any], outside: Outside) -> None:
    boss: User = User.objects.create_user("boss")
    boss.user_permissions.add(Permission.objects.get(codename="decide_agentrun"))
    page["publisher"].model = Scripted(calls(called("publish", "w1", text="!")), says("Out.")).model
    run = execute(accept("publisher"))
    assert run.status == RunStatus.WAITING_FOR_APPROVAL
    page["approve"](run, boss)
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert len(outside.sent) == 1


def test_it_shows_a_question(page: dict[str, Any]) -> None:
    response = calls(called("size_of", "q1", what="door"), called("ask_human", "q2", question="?"))
    model = Scripted(response, says("Thanks."))
    page["carpenter"].model = model.model
    run = execute(accept("carpenter"))
    assert run.status == RunStatus.WAITING_FOR_INPUT
    for question, said in zip(
        run.journal().open_questions().order_by("key"), (70, "so"), strict=True
    ):
        api.submit_input(run.uuid, question.key, said, by="ann")
    assert execute(run).status == RunStatus.COMPLETED
    assert "70 cm" in str(model.asked[-1])


@pytest.mark.parametrize("landed", [True, False])
def test_it_shows_a_verification(page: dict[str, Any], outside: Outside, landed: bool) -> None:
    outside.breaks = 1
    model = Scripted(calls(called("pay", "w1", amount=5)), says("Done."))
    page["payer"].model = model.model
    run = execute(accept("payer"))
    step = fenced(run)
    if landed:
        outside.paid[step.idempotency_key] = 5
    work(str(run.uuid))
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert outside.paid == {step.idempotency_key: 5}
    assert "paid 5" in str(model.asked[-1])


def test_it_shows_a_stream(page: dict[str, Any], outside: Outside) -> None:
    async def stream(messages: Any, info: Any) -> Any:
        yield "It is "
        yield "late."

    page["teller"].model = FunctionModel(stream_function=stream)
    run = execute(accept("teller"))
    assert output(run) == "It is late."
    assert [said[3] for said in outside.fed] == list(range(len(outside.fed)))
    assert {said[:3] for said in outside.fed} == {(run.uuid, "model:1", 1)}


def test_it_shows_an_agent_inside_a_tool(page: dict[str, Any]) -> None:
    page["searcher"].model = TestModel(custom_output_text="found")
    model = Scripted(calls(called("research", "r1", question="Why?")), says("So."))
    page["editor"].model = model.model
    assert output(execute(accept("editor"))) == "So."
    assert "found" in str(model.asked[-1])


def test_it_shows_dependencies(page: dict[str, Any]) -> None:
    model = Scripted(calls(called("where", "r1")), says("Hello."))
    page["greeter"].model = model.model
    run = execute(AgentRun.objects.get(agent="greeter"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert "ann is in the old one" in str(model.asked[-1])
    assert run.agent_version == "2"


def test_what_it_imports_is_exported() -> None:
    code = "\n".join(block.content for block in PAGE.blocks("python"))
    imported = re.findall(r"^from nrllm import (.+)$", code, re.MULTILINE)
    names = {name.strip() for line in imported for name in line.split(",")}
    assert names
    assert names <= set(nrllm.__all__)


def test_every_way_past_a_fence_names_tests_that_exist() -> None:
    sources = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(sources), re.MULTILINE))
    table = PAGE.text.partition("## Ways past a fence")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 16
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row[3]))
        assert named, row[1]
        assert named <= tests, named - tests
