"""The code of docs/how-to, executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.core.checks import run_checks
from django.test import RequestFactory, override_settings
from django.utils import timezone

from agentruns.enums import RunStatus, ToolEffect
from agentruns.models import AgentRun
from agentruns.tasks import execute as work
from agentruns.testing.json_http import JsonServer, Reply, Request
from nrllm import WriteInDoubt, registration
from tests.agentruns.cases import failed
from tests.factories import dead_lettered_write, queued
from tests.harness.environment import subprocess_environment
from tests.markdown import Page
from tests.nrllm.support import (
    Scripted,
    accept,
    called,
    calls,
    execute,
    fenced,
    output,
    result,
    says,
    step_named,
    steps,
)
from tests.servers.process import ROOT

pytestmark = [pytest.mark.sqlite, pytest.mark.usefixtures("settings_for_runs")]


def page(name: str) -> Page:
    return Page(ROOT / f"docs/how-to/{name}.md")


def code(name: str, file: str) -> SimpleNamespace:
    """What the page's file defines."""
    (block,) = (block for block in page(name).blocks("python") if block.file == file)
    namespace: dict[str, Any] = {"__name__": file}
    exec(compile(block.content, f"{name}.md", "exec"), namespace)
    return SimpleNamespace(**namespace)


def answers(agent: str, *responses: Any) -> Scripted:
    """Have the agent's model answer from a script."""
    model = Scripted(*responses)
    registration._agents[agent].agent.model = model.model  # type: ignore[misc]
    return model


class Destination:
    """A service that keeps what it receives by key, and may break off once it has it."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.received: list[str] = []
        self.break_off = 0
        self.finds_nothing = 404
        routes = {"POST tickets": self.take, "POST refunds": self.take, "GET refunds": self.find}
        self.server = JsonServer(routes)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, request: Request) -> Reply | None:
        key = request.handler.headers.get("Idempotency-Key") or request.body["key"]
        self.received.append(key)
        self.kept.setdefault(key, {**request.body, "number": len(self.kept) + 1})
        if self.break_off > 0:
            self.break_off -= 1
            request.handler.close_connection = True
            return None
        return Reply(self.kept[key])

    def find(self, request: Request) -> Reply:
        found = self.kept.get(request.argument)
        return Reply({}, self.finds_nothing) if found is None else Reply(found)


@pytest.fixture
def destination() -> Iterator[Destination]:
    service = Destination()
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield service
    service.server.shutdown()
    thread.join()
    service.server.server_close()


@pytest.fixture
def ann() -> User:
    ann = User.objects.create_user("ann", "ann@example.org")
    ann.user_permissions.add(Permission.objects.get(codename="decide_agentrun"))
    return ann


def test_an_email_has_the_key_of_its_call() -> None:
    code("make-a-tool-a-write", "shop/agents.py")
    send = called("send_email", to="ann@example.org", subject="Yes", body="It is on its way.")
    answers("support", calls(send), says("Done."))
    run = execute(accept("support"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    (message,) = mail.outbox
    key = step_named(run, "send_email").idempotency_key
    assert message.extra_headers["Message-ID"] == f"<{key}@example.org>"
    assert step_named(run, "send_email").effect == ToolEffect.NON_IDEMPOTENT_WRITE


def test_an_email_that_was_not_sent_leaves_no_doubt() -> None:
    code("make-a-tool-a-write", "shop/agents.py")
    send = called("send_email", to="ann@example.com", subject="Yes", body="It is on its way.")
    answers("support", calls(send), says("That is nobody."))
    run = execute(accept("support"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert mail.outbox == []


def test_an_account_is_blocked_with_its_step(ann: User) -> None:
    code("make-a-tool-a-write", "shop/agents.py")
    find = called("find_customer", "f1", address="ann@example.org")
    block = called("block_account", "b1", user_id=ann.pk)
    answers("support", calls(find), calls(block), says("Blocked."))
    run = execute(accept("support"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert not User.objects.get(pk=ann.pk).is_active


def test_a_ticket_is_opened_once_though_it_is_asked_for_twice(
    destination: Destination, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = code("make-a-tool-a-write", "shop/failures.py")
    monkeypatch.setitem(sys.modules, "shop.failures", failures)
    given = code("make-a-tool-a-write", "mysite/settings.py").AGENTRUNS
    settings.AGENTRUNS = {**settings.AGENTRUNS, **given}
    settings.TICKETS_URL = destination.url
    code("make-a-tool-a-write", "shop/agents.py")
    destination.break_off = 1
    answers("support", calls(called("open_ticket", title="A torn box")), says("Opened."))
    run = execute(accept("support"))
    assert run.status == RunStatus.QUEUED, run.error_message
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert len(destination.received) == 2
    assert len(destination.kept) == 1


def test_the_bank_says_that_the_refund_landed(destination: Destination, settings: Any) -> None:
    settings.BANK_URL = destination.url
    code("verify-a-write", "shop/agents.py")
    destination.break_off = 1
    answers("cashier", calls(called("refund", order=7, cents=300)), says("Paid back."))
    run = execute(accept("cashier"))
    assert fenced(run).name == "refund"
    work(str(run.uuid))
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert len(destination.received) == 1


@pytest.mark.parametrize(("status", "testimony"), [(404, "not_landed"), (503, "unknown")])
def test_the_bank_s_other_answers(
    destination: Destination, settings: Any, status: int, testimony: str
) -> None:
    settings.BANK_URL = destination.url
    doubt = WriteInDoubt(uuid4(), "refund", "unheard", {}, timezone.now())
    destination.finds_nothing = status
    said = code("verify-a-write", "shop/agents.py").ask_the_bank(doubt)
    assert said.testimony == testimony


def ask(view: Any, user: User, run: AgentRun, **posted: str) -> tuple[int, Any]:
    requests = RequestFactory()
    request = requests.post("/", posted) if posted else requests.get("/")
    request.user = user
    response = view(request, uuid=str(run.uuid))
    return response.status_code, json.loads(response.content or "null")


def test_a_person_answers_and_approves_on_pages_of_the_application(ann: User) -> None:
    code("approvals-and-questions", "shop/agents.py")
    views = code("approvals-and-questions", "shop/views.py")
    budget = called("budget_for", "b1", item="paper")
    order = called("order", "o1", item="paper", cents=900)
    answers("buyer", calls(budget), calls(order), says("Ordered."))
    run = execute(accept("buyer"))
    _, shown = ask(views.questions, ann, run)
    (question,) = shown["questions"]
    about = {"step": question["step"], "digest": question["digest"]}
    assert ask(views.answer, ann, run) == (405, None)
    status, refusal = ask(views.answer, ann, run, **about, number="many")
    assert (status, list(refusal["errors"])) == (400, ["number"])
    assert ask(views.answer, ann, run, **about, number="1000") == (200, {})
    run = execute(run)
    assert run.status == RunStatus.WAITING_FOR_APPROVAL, run.error_message
    _, shown = ask(views.questions, ann, run)
    (call,) = shown["questions"]
    about = {"step": call["step"], "digest": call["digest"]}
    status, refusal = ask(views.answer, ann, run, step=call["step"], digest="old", approve="yes")
    assert (status, list(refusal)) == (409, ["refused"])
    assert ask(views.answer, ann, run, **about, approve="yes") == (200, {})
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert "ordered paper for 900" in str([result(step) for step in steps(run)])


def test_the_settings_for_several_hosts_contradict_nothing() -> None:
    given = code("several-hosts", "mysite/settings.py")
    with override_settings(Q_CLUSTER=given.Q_CLUSTER, AGENTRUNS=given.AGENTRUNS):
        said = [message for message in run_checks() if "agentruns" in str(message.id)]
    assert [message.id for message in said if message.is_serious()] == []
    assert len(given.AGENTRUNS) == 3


def test_a_stop_signals_the_main_process_alone_and_waits_for_the_longest_run() -> None:
    """SIGTERM to all of its processes may leave django-q2's main one waiting for what is gone."""
    page = (ROOT / "docs/how-to/several-hosts.md").read_text(encoding="utf-8")
    unit = page.split("mysite-workers.service")[1].split("```")[0]
    timeout = code("several-hosts", "mysite/settings.py").Q_CLUSTER["timeout"]
    assert "KillMode=mixed" in unit
    assert int(unit.split("TimeoutStopSec=")[1].split()[0]) > timeout


def shell(script: str, **variables: str) -> str:
    """Execute a page's commands on this test's database; return what they print."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=ROOT,
        env={**subprocess_environment(), **variables, "PATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def commands(name: str) -> str:
    return "".join(block.content for block in page(name).blocks("sh"))


def test_a_run_of_the_old_version_waits_until_it_is_moved() -> None:
    code("upgrade", "shop/agents.py")
    answers("clerk", says("Dear Bob."))
    run = queued("clerk", "write to Bob", agent_version="1")
    work(str(run.uuid))
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.QUEUED
    shell(commands("upgrade"), run=str(run.uuid))
    run = execute(run)
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert output(run) == "Dear Bob."


def test_what_is_to_be_done_at_three_in_the_morning() -> None:
    run, _step = dead_lettered_write(agent="one_write")
    other, gone = queued(), failed()
    digest = AgentRun.objects.get(pk=run.pk).resolution_digest()
    printed = shell(
        commands("at-three-in-the-morning"),
        run=str(run.uuid),
        other=str(other.uuid),
        failed=str(gone.uuid),
        digest=digest,
    )
    assert digest in printed
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.QUEUED
    assert AgentRun.objects.get(pk=other.pk).status == RunStatus.CANCELLED
    assert AgentRun.objects.get(pk=gone.pk).status == RunStatus.QUEUED
