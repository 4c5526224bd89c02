from __future__ import annotations

import logging
from typing import Any

import pytest

from agentruns import api
from agentruns.exceptions import CancelRequested, GivenBack, LeaseLost
from agentruns.segment import Segment
from agentruns.tracebacks import told_traceback
from tests.agentruns.cases import conf
from tests.agentruns.test_redaction import CARD, HIDE
from tests.factories import READ, WRITE, executed, lose

pytestmark = pytest.mark.django_db(transaction=True)


def deep_in_my_code(key: str) -> Any:
    raise KeyError(f"deep in my code, {CARD}")


def reading(segment: Segment) -> Any:
    return segment.step("read", deep_in_my_code, effect=READ)


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record for record in loud if record.name == "agentruns.runner"]


def the_line(caplog: pytest.LogCaptureFixture) -> tuple[Any, str]:
    (record,) = logged(caplog)
    return record, logging.Formatter().format(record)


def test_a_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    run = executed(reading)
    record, text = the_line(caplog)
    assert (record.levelname, record.run, record.epoch) == ("ERROR", str(run.uuid), 1)
    assert record.owner
    assert str(run.uuid) in text
    assert "not_retryable" in text
    assert "in deep_in_my_code" in text
    assert f"KeyError: 'deep in my code, {CARD}'" in text
    assert api.status(run.uuid).error == f"KeyError: 'deep in my code, {CARD}'"


def test_a_failure_that_is_tried_again_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def agent(segment: Segment) -> Any:
        raise ConnectionResetError("away")

    assert executed(agent).status == "queued"
    record, text = the_line(caplog)
    assert record.levelname == "WARNING"
    assert "requeue" in text
    assert "in agent" in text


def test_the_body_of_an_interrupted_write_is_in_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executed(lambda segment: segment.step("send", deep_in_my_code, effect=WRITE))
    record, text = the_line(caplog)
    assert record.levelname == "ERROR"
    assert "interrupted_write" in text
    assert "in deep_in_my_code" in text


@pytest.mark.parametrize("effect", [READ, WRITE])
def test_what_redact_leaves_out_is_not_in_it(caplog: pytest.LogCaptureFixture, effect: Any) -> None:
    with conf(REDACT=HIDE):
        executed(lambda segment: segment.step("step", deep_in_my_code, effect=effect))
    record, text = the_line(caplog)
    assert CARD not in text
    assert record.exc_info is None
    assert "in deep_in_my_code" in text
    assert "KeyError: 'deep in my code, [card in text]'" in text


@pytest.mark.parametrize("interrupt", [CancelRequested, GivenBack, LeaseLost])
def test_what_is_no_failure_is_not_logged_as_one(
    caplog: pytest.LogCaptureFixture, interrupt: type[BaseException]
) -> None:
    def agent(segment: Segment) -> Any:
        raise interrupt("so")

    executed(agent)
    assert not any(record.exc_info for record in logged(caplog))
    assert "failed with" not in caplog.text


def test_a_parked_run_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    run = executed(lambda segment: segment.wait_for_input("sure", "sure?"))
    assert run.status == "waiting_for_input"
    assert logged(caplog) == []


def test_a_failure_is_logged_though_the_run_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    def agent(segment: Segment) -> Any:
        lose(segment.run)
        deep_in_my_code("")

    executed(agent)
    (failure,) = (record for record in logged(caplog) if record.exc_info)
    assert failure.levelname == "WARNING"
    assert "left to others" in failure.getMessage()


def test_causes_groups_and_circles_are_told() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    text = told_traceback(ExceptionGroup("both", [one, KeyError("three")]))
    for part in ("ValueError: one", "ValueError: two", "KeyError: 'three'", "both"):
        assert text.count(part) == 1
