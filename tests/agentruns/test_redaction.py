from __future__ import annotations

import logging
from typing import Any

import pytest

from agentruns import api, registry
from agentruns.enums import EventKind, Resolution
from agentruns.models import AgentRun
from agentruns.redaction import redacted, told
from agentruns.registry import RegisteredAgent, Verifier
from agentruns.segment import Segment
from agentruns.verification import verify
from tests.agentruns.admin.conftest import LogIn, log_in
from tests.agentruns.admin.pages import page_of, source
from tests.agentruns.cases import asking, completed, conf, interrupted
from tests.agentruns.commands.conftest import Commands, command
from tests.factories import READ, WRITE, dead_lettered_write, execute_again, executed, step_of

__all__ = ["command", "log_in"]

pytestmark = pytest.mark.django_db(transaction=True)

CARD = "4111-1111-1111-1111"


def hide(what: str, value: Any) -> Any:
    """Leave card numbers out, wherever they stand."""
    if isinstance(value, str):
        return value.replace(CARD, f"[card in {what}]")
    if isinstance(value, dict):
        return {key: hide(what, item) for key, item in value.items()}
    if isinstance(value, list):
        return [hide(what, item) for item in value]
    return value


def fails(what: str, value: Any) -> Any:
    raise RuntimeError(f"can't redact {value}")


def no_json(what: str, value: Any) -> Any:
    return object()


HIDE, FAILS, NO_JSON = (f"{__name__}.{name}" for name in ("hide", "fails", "no_json"))


def test_the_admin_shows_what_is_left(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = completed(request={"card": CARD}, output=[CARD])
    run.add_event(EventKind.WOKEN, actor="ada", why=CARD)
    assert CARD in source(client, page_of(run))
    with conf(REDACT=HIDE):
        page = source(client, page_of(run))
    assert CARD not in page
    for column in ("request", "output", "event"):
        assert f"[card in {column}]" in page


def test_a_long_payload_is_redacted_before_it_is_cut(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "view_payload")
    run = completed(request={"long": "x" * 5_000, "card": CARD * 100}, output=CARD)
    with conf(REDACT=HIDE):
        page = source(client, page_of(run))
    assert CARD not in page
    assert "Only the beginning is shown." in page


def test_a_question_is_shown_redacted(log_in: LogIn) -> None:
    client = log_in("view_agentrun", "decide_agentrun")
    asking(arguments={"charge": CARD})
    with conf(REDACT=HIDE):
        page = source(client, "/admin/agentruns/agentrun/inbox/")
    assert CARD not in page
    assert "[card in arguments]" in page


def test_commands_show_what_is_left(command: Commands) -> None:
    run = interrupted(request=CARD, arguments={"card": CARD})
    run.add_event(EventKind.WOKEN, actor="ada", why=CARD)
    uuid = str(run.uuid)
    shows = (("show_agent_run", uuid, "--payloads"), ("resolve_agent_run", uuid))
    for arguments in shows:
        assert CARD in command(*arguments).text
        with conf(REDACT=HIDE):
            for more in ((), ("--json",)):
                text = command(*arguments, *more).text
                assert CARD not in text
                assert "[card in arguments]" in text


def test_the_texts_of_errors_are_kept_redacted() -> None:
    def declined(key: str) -> None:
        raise ValueError(f"{CARD} was declined")

    def agent(segment: Segment) -> Any:
        return segment.step("write", declined, effect=WRITE)

    with conf(REDACT=HIDE):
        run = executed(agent)
    assert run.error_message.startswith("write raised ValueError: [card in text] was declined (")
    assert CARD not in step_of(run).error


def test_reasons_and_notes_are_kept_redacted() -> None:
    run = interrupted()
    with conf(REDACT=HIDE):
        run.resolve(
            Resolution.LEFT, by="ada", reason=f"{CARD} is not ours", digest=run.resolution_digest()
        )
    assert api.events(run.uuid)[-1].data["why"] == "[card in text] is not ours"


def test_the_journal_is_not_altered() -> None:
    def agent(segment: Segment) -> Any:
        card = segment.step("read", lambda key: CARD, effect=READ)
        if segment.claim.epoch == 1:
            raise ConnectionResetError
        return [segment.request, card]

    with conf(REDACT=HIDE):
        run = execute_again(executed(agent, CARD), agent)
    assert api.status(run.uuid).output == [CARD, CARD]


def test_what_a_destination_says_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def ask(doubt: Any) -> Any:
        raise ValueError(f"{CARD} is unknown")

    run, _step = dead_lettered_write()
    registry.add(RegisteredAgent("agent", print, verifiers={"write": Verifier(ask)}))
    try:
        with conf(REDACT=HIDE), caplog.at_level(logging.DEBUG):
            verify(run.uuid)
    finally:
        del registry._agents["agent"]
    assert CARD not in caplog.text
    assert "the verification of run" in caplog.text
    said = run.history().get(kind=EventKind.VERIFIED).details
    assert said["note"] == "ValueError: [card in text] is unknown"


@pytest.mark.parametrize(("path", "error"), [(FAILS, "RuntimeError"), (NO_JSON, "PayloadError")])
def test_a_function_that_fails_shows_nothing(
    path: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    with conf(REDACT=path):
        assert redacted("request", {"card": CARD}) == f"[not shown: REDACT failed with {error}]"
        assert told(CARD) == f"[not shown: REDACT failed with {error}]"
    assert CARD not in caplog.text
    assert error in caplog.text


def test_a_function_that_fails_stops_no_run() -> None:
    def agent(segment: Segment) -> Any:
        raise ValueError(CARD)

    with conf(REDACT=FAILS):
        run = executed(agent)
    assert (run.status, run.error_class) == ("failed", "ValueError")
    assert CARD not in AgentRun.objects.get(pk=run.pk).error_message


def test_what_a_command_asks_is_redacted(command: Commands) -> None:
    run = asking(arguments={"charge": CARD})
    with conf(REDACT=HIDE):
        text = command("decide_agent_run", str(run.uuid)).text
    assert CARD not in text
    assert "[card in arguments]" in text
