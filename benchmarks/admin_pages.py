"""Every page of the admin and every list of the commands, and how many rows each may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any
from urllib.parse import urlencode

from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from agentruns import figures
from agentruns.admin import dashboard, desk, inbox, run_page
from agentruns.admin.paginator import MAX_LISTED
from agentruns.enums import FAILURES, RunStatus
from agentruns.management.finding import ADJECTIVES
from agentruns.models import AgentRun, Step

from .filling import AGENTS, LONG_JOURNAL, WORKERS

PREFIX = "admin:agentruns_agentrun_"
ATTENTION = ("fenced", "unresolved", "waiting", "stale", "due")
# A list reads its rows, and counts on to its end. Where not many more runs fit than are listed (up to
# some three times as many), PostgreSQL may read all of them by a bitmap, index first and table then, and
# sort them: that costs less than an index in the list's order.
LIST = 2 * 3 * MAX_LISTED + 4 * WORKERS + 100
DESK = 10 * (desk.SHOWN + 1) * 2 + 2 * WORKERS
INBOX = 10 * (inbox.SHOWN + 1)
RUN = 20 * (run_page.SHOWN_STEPS + run_page.SHOWN_EVENTS)
# A run's own journal and history are found by the run, and sorted.
LONG_RUN = 4 * LONG_JOURNAL
DASHBOARD = (
    dashboard.READ_RUNS
    + dashboard.READ_EVENTS
    + 2 * dashboard.READ_STEPS
    + (figures.COUNTED + 2) * (4 + len(FAILURES))
    + 500
)


@dataclass(frozen=True)
class Page:
    name: str
    look: Callable[[], object]
    bound: int


def pages(client: Client) -> Iterator[Page]:
    """Every page, as the person of this client sees it; the runs are chosen now."""
    for query in list_queries():
        yield page(client, f"list {urlencode(query)}".strip(), url("changelist"), LIST, query)
    yield page(client, "desk", url("desk"), DESK)
    yield page(client, "inbox", url("inbox"), INBOX)
    for window in dashboard.WINDOWS:
        query = {"window": window.key}
        yield page(client, f"dashboard {window.key}", url("dashboard"), DASHBOARD, query)
    yield from pages_of_runs(client)
    yield from commands()


def list_queries() -> Iterator[dict[str, Any]]:
    run = AgentRun.objects.exclude(correlation_id="").order_by("-pk")[WORKERS]
    yield {}
    yield {"p": 5}
    yield {"p": MAX_LISTED // 50}
    yield from ({"attention": value} for value in ATTENTION)
    yield from ({"dead_lettered": value} for value in ("any", *FAILURES))
    yield from ({"status__exact": value} for value in RunStatus.values)
    yield from ({"agent": value} for value in AGENTS)
    for term in (
        run.uuid,
        *AGENTS,
        run.correlation_id,
        "import",
        "shop",
        "old shop",
        "user 7",
        "nobody",
    ):
        yield {"q": term}


def pages_of_runs(client: Client) -> Iterator[Page]:
    doubtful = AgentRun.objects.unresolved().first()
    ordinary = AgentRun.objects.filter(status=RunStatus.COMPLETED).order_by("-pk").first()
    long = AgentRun.objects.filter(status=RunStatus.COMPLETED).order_by("pk").first()
    question = Step.objects.open_questions().order_by("pk").first()
    assert doubtful is not None
    assert ordinary is not None
    assert long is not None
    assert question is not None
    yield page(client, "run", url("change", ordinary.pk), RUN)
    yield page(client, "run in doubt", url("change", doubtful.pk), RUN)
    yield page(client, "run with a long journal", url("change", long.pk), LONG_RUN)
    yield page(client, "resolve", url("resolve", doubtful.pk), RUN)
    yield page(client, "answer", url("answer", question.run_id, question.pk), RUN)


def commands() -> Iterator[Page]:
    options = [[f"--{name.replace('_', '-')}"] for name in ADJECTIVES]
    options += [["--status", value] for value in RunStatus.values]
    options += [["--reason", value] for value in FAILURES]
    options += [["--agent", value] for value in AGENTS]
    options += [["--requested-by", value] for value in ("shop", "old shop")]
    options += [["--correlation-id", value] for value in ("order 7", "import")]
    options.append([])
    for given in options:
        name = " ".join(["list_agent_runs", *given])
        yield Page(name, partial(call, "list_agent_runs", *given), LIST)


def call(command: str, *arguments: str) -> None:
    call_command(command, *arguments, stdout=StringIO())


def url(name: str, *arguments: object) -> str:
    return reverse(PREFIX + name, args=arguments)


def page(
    client: Client, name: str, address: str, bound: int, query: dict[str, Any] | None = None
) -> Page:
    def look() -> None:
        response = client.get(address, query or {})
        assert response.status_code == 200, f"{name}: {response.status_code}"

    return Page(name, look, bound)
