from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field, PlainSerializer, RootModel, SecretStr
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_core import core_schema

from agentruns.enums import RunStatus, StepState, ToolEffect
from nrllm import effect, register_agent
from nrllm.arguments import arguments_of
from nrllm.keys import digest
from tests.nrllm.support import (
    Scripted,
    accept,
    arguments,
    called,
    calls,
    execute,
    says,
    step_named,
)
from tests.servers.process import ROOT

pytestmark = pytest.mark.usefixtures("settings_for_runs")
WRITES = [one for one in ToolEffect if one is not ToolEffect.READ_ONLY]


class Account:
    """A type that Pydantic reads, and that has no JSON form."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, str]:
        return {"type": "string"}


class Letter(BaseModel):
    to: str
    ref: UUID = Field(default_factory=uuid4)
    tags: list[str] = Field(default_factory=list)


@dataclasses.dataclass
class Parcel:
    to: str
    ref: UUID = dataclasses.field(default_factory=uuid4)


class Hiding(BaseModel):
    shown: str
    left_out: str = Field(exclude=True)
    masked: Annotated[str, PlainSerializer(lambda value: "***")]


class Colour(StrEnum):
    RED = "red"


def test_a_set_has_one_form() -> None:
    assert arguments_of({"orders": {8, 16}}).stored == {"orders": [16, 8]}, "sorted as text"
    nested = {"a": [{"b", "a"}], "model": RootModel[set[str]]({"d", "c"})}
    assert arguments_of(nested).stored == {"a": [["a", "b"]], "model": ["c", "d"]}
    assert arguments_of(nested).unclear == ()


def test_a_set_has_one_form_in_every_process() -> None:
    code = (
        "from nrllm.arguments import arguments_of\n"
        "from nrllm.keys import digest\n"
        "print(digest(arguments_of({'tags': set('abcdefgh')}).known_by))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {digest({"tags": list("abcdefgh")}) + "\n"}


@pytest.mark.parametrize(
    ("value", "stored", "unclear"),
    [
        (SecretStr("ann"), "**********", ("x",)),
        (Account("ann"), f"<{__name__}.Account>", ("x",)),
        ([Account("ann")], [f"<{__name__}.Account>"], ("x[0]",)),
        (
            Hiding(shown="a", left_out="b", masked="c"),
            {"shown": "a", "left_out": None, "masked": "***"},
            ("x.left_out", "x.masked"),
        ),
        ({1: "a", "1": "b"}, {"1": "b"}, ("x",)),
        (Colour.RED, "red", ()),
        (float("inf"), float("inf"), ()),
        (Letter(to="a", ref=UUID(int=1), tags=["b"]), None, ()),
    ],
)
def test_what_its_json_does_not_say_is_named(value: Any, stored: Any, unclear: Any) -> None:
    reduced = arguments_of({"x": value})
    assert reduced.unclear == unclear
    assert stored is None or reduced.stored == {"x": stored}


def test_an_iterator_is_left_to_the_body() -> None:
    lazy: Iterator[int] = iter([1, 2])
    assert arguments_of({"lazy": lazy}).unclear == ("lazy",)
    assert list(lazy) == [1, 2]


def test_what_a_factory_made_is_stored_but_does_not_tell_calls_apart() -> None:
    one, other = (arguments_of({"letter": Letter(to="ann")}, {"to": "ann"}) for _ in range(2))
    assert one.generated == ("letter.ref",)
    assert one.stored != other.stored
    assert one.digest == other.digest == digest({"letter": {"to": "ann", "tags": []}})
    given = arguments_of({"letter": Letter(to="ann", ref=UUID(int=1))})
    assert given.generated == ()
    assert given.digest is None, "what the model gave tells calls apart"


def test_what_a_dataclass_or_a_parameter_makes_is_known_by_what_the_model_gave() -> None:
    def send(to: str, ref: Annotated[UUID, Field(default_factory=uuid4)]) -> None: ...

    args = {"to": "ann", "ref": UUID(int=1)}
    assert arguments_of(args, {"to": "ann"}, send).generated == ("ref",)
    assert arguments_of(args, {"to": "ann", "ref": "x"}, send).generated == ()
    for raw in ({"to": "ann"}, {"parcel": {"to": "ann"}}):
        assert arguments_of({"parcel": Parcel("ann")}, raw).generated == ("parcel.ref",)
    assert arguments_of({"parcel": Parcel("ann")}, {"to": "a", "ref": "x"}).generated == ()


def test_equal_sets_are_one_call_of_a_write_that_is_made_once_per_run() -> None:
    done: list[set[int]] = []
    model = Scripted(
        calls(called("refund", "a", orders=[8, 16])),
        calls(called("refund", "b", orders=[16, 8])),
        says("ok"),
    )
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(ToolEffect.NON_IDEMPOTENT_WRITE, once_per_run=True)
    async def refund(orders: set[int]) -> None:
        done.append(orders)

    register_agent("a", agent)
    run = execute(accept("a"))
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert done == [{8, 16}]


@pytest.mark.parametrize("said", [{"once_per_run": True}, {"needs_approval": True}])
@pytest.mark.parametrize("kind", [SecretStr, Account])
def test_arguments_that_json_does_not_tell_apart_are_refused(
    said: dict[str, Any], kind: type[Any]
) -> None:
    done: list[Any] = []
    agent = Agent(Scripted(calls(called("pay", "a", account="ann"))).model, name="a")

    async def pay(account: Any) -> None:
        done.append(account)

    pay.__annotations__["account"] = kind
    agent.tool_plain(effect(ToolEffect.NON_IDEMPOTENT_WRITE, **said)(pay))
    register_agent("a", agent)
    run = execute(accept("a"))
    assert (run.status, run.termination_reason) == (RunStatus.FAILED, "not_retryable")
    assert "'account'" in run.error_message
    assert "take an id instead" in run.error_message
    assert done == []


def sender(kind: ToolEffect, **said: Any) -> list[Letter]:
    """Register an agent that writes a letter, and whose model then fails once."""
    sent: list[Letter] = []
    model = Scripted(
        calls(called("send", "a", to="ann")), says("ok"), failures={1: [ModelHTTPError(503, "m")]}
    )
    agent = Agent(model.model, name="a")

    @agent.tool_plain
    @effect(kind, **said)
    def send(letter: Letter) -> None:
        sent.append(letter)

    register_agent("a", agent)
    return sent


@pytest.mark.parametrize(
    "kind", [ToolEffect.READ_ONLY, ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.TRANSACTIONAL_WRITE]
)
def test_a_generated_argument_is_stored_as_it_was_used_and_replayed(kind: ToolEffect) -> None:
    sent = sender(kind)
    run = execute(execute(accept("a")))
    assert run.status == RunStatus.COMPLETED, run.error_message
    (letter,) = sent
    assert arguments(step_named(run, "send"))["letter"]["ref"] == str(letter.ref)
    assert step_named(run, "send").state == StepState.RECORDED


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ToolEffect.IDEMPOTENT_WRITE, {}),
        (ToolEffect.NON_IDEMPOTENT_WRITE, {"needs_approval": True}),
        (ToolEffect.READ_ONLY, {"needs_approval": True}),
    ],
)
def test_a_generated_argument_that_must_stay_the_same_is_refused(
    kind: ToolEffect, said: dict[str, Any]
) -> None:
    sent = sender(kind, **said)
    run = execute(accept("a"))
    assert run.status == RunStatus.FAILED
    assert "'letter.ref'" in run.error_message
    assert "idempotency_key()" in run.error_message
    assert sent == []


def test_no_revealed_secret_is_stored() -> None:
    reduced = arguments_of({"letter": Letter(to="a"), "key": SecretStr("s3cr")}, {"to": "a"})
    assert "s3cr" not in json.dumps([reduced.stored, reduced.known_by])


def test_bytes_have_a_json_form_whatever_they_are() -> None:
    assert arguments_of({"text": b"plain"}).stored == {"text": "plain"}
    assert arguments_of({"image": b"\xff\xfe"}).stored == {"image": "base64://4="}
    assert arguments_of({"image": b"base64://4="}).stored != {"image": "base64://4="}
