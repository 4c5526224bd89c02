"""What somebody writes into the list's address, or into the form that it sends."""

from __future__ import annotations

import pytest
from django.test import Client

from agentruns.enums import RunStatus
from agentruns.fields import PayloadField
from agentruns.models import AgentRun, Event, Step
from tests.agentruns.cases import interrupted, queued
from tests.harness.runs import reread

from .conftest import LogIn
from .pages import LIST, page_of

LOOKUPS = (
    "", "__exact", "__iexact", "__contains", "__icontains", "__startswith", "__istartswith",
    "__endswith", "__regex", "__iregex", "__isnull", "__gt", "__lt", "__range", "__in",
)  # fmt: skip
ACTIONS = ("cancel_runs", "retry_runs", "wake_runs", "move_runs", "fail_runs")


def columns_of_payloads() -> list[str]:
    """Each payload that a lookup reaches from a run."""
    reached = {AgentRun: ("",), Step: ("steps__", "pending_step__"), Event: ("events__",)}
    return [
        f"{path}{field.name}"
        for model, paths in reached.items()
        for field in model._meta.fields
        if isinstance(field, PayloadField)
        for path in paths
    ]


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("column", columns_of_payloads())
def test_no_payload_is_guessed_from_the_address(viewer: Client, column: str, lookup: str) -> None:
    interrupted(request="secret")
    assert viewer.get(LIST, {column + lookup: "1:"}).status_code == 400


def test_a_guess_is_refused_under_an_action_and_beside_a_filter(log_in: LogIn) -> None:
    run = queued(request="secret")
    query = "?status__exact=queued&request__contains=secret"
    picked = {"action": "cancel_runs", "_selected_action": str(run.pk), "index": "0"}
    client = log_in("view_agentrun", "cancel_agentrun")
    assert client.post(LIST + query, picked).status_code == 400
    assert client.get(LIST + query).status_code == 400


@pytest.mark.parametrize("column", ["error_message", "id", "created_at", "steps__error", "agent"])
def test_no_other_column_is_a_filter_either(viewer: Client, column: str) -> None:
    assert viewer.get(LIST, {f"{column}__gt": "0"}).status_code == 400


def test_the_filters_of_the_list_stay(viewer: Client) -> None:
    for query in (
        {"attention": "fenced"},
        {"dead_lettered": "any"},
        {"agent": "echo"},
        *({"status__exact": status} for status in RunStatus.values),
    ):
        assert viewer.get(LIST, query).status_code == 200


@pytest.mark.parametrize("value", ["\x00", "nonsense", ""])
def test_an_unknown_status_is_refused(viewer: Client, value: str) -> None:
    assert viewer.get(LIST, {"status__exact": value}).status_code == 400


@pytest.mark.parametrize("picked", ["abc", "", "\x00", "1" * 30, "-1", "²"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_forged_selection_is_refused(log_in: LogIn, action: str, picked: str) -> None:
    run = queued()
    client = log_in("view_agentrun", "cancel_agentrun", "retry_agentrun", "move_agentrun")
    sent = {"action": action, "index": "0", "confirmed": "yes", "reason": "r", "version": "2"}
    response = client.post(LIST, {**sent, "_selected_action": [str(run.pk), picked]})
    assert response.status_code == 400
    assert reread(run).status == RunStatus.QUEUED


def test_a_page_that_may_be_read_answers_to_head(viewer: Client) -> None:
    assert viewer.head(page_of(queued())).status_code == 200
