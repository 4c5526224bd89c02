from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse

from agentruns.models import AgentRun, Step

# What sets a stranger's words apart within a line.
INLINE = re.compile(r"</?(bdi|q)\b[^>]*>")
LIST = reverse("admin:agentruns_agentrun_changelist")
DESK = reverse("admin:agentruns_agentrun_desk")


def page_of(run: AgentRun) -> str:
    return reverse("admin:agentruns_agentrun_change", args=[run.pk])


def answer_page(run: AgentRun) -> str:
    step = Step.objects.filter(run=run).latest("pk")
    return reverse("admin:agentruns_agentrun_answer", args=[run.pk, step.pk])


def resolve_page(run: AgentRun) -> str:
    return reverse("admin:agentruns_agentrun_resolve", args=[run.pk])


def source(client: Client, url: str, **query: Any) -> str:
    response = client.get(url, query)
    assert response.status_code == 200, (url, response.status_code)
    return response.content.decode()


def words(page: str) -> str:
    """What a person reads: the text of a page, without its markup, on one line."""
    main = page[page.index('<div id="content"') :]
    main = INLINE.sub("", main)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", main)))


def act(client: Client, action: str, *runs: AgentRun, **more: str) -> Any:
    """Press the button of an action in the list."""
    chosen = [str(run.pk) for run in runs]
    data = {"action": action, ACTION_CHECKBOX_NAME: chosen, **more}
    return client.post(LIST, data, follow=True)


def messages(response: Any) -> list[str]:
    return [INLINE.sub("", str(message)) for message in response.context["messages"]]
