from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from agentruns.testing.client import Refused
from tests.harness.fixtures import Wire

CONVERSATIONS = {
    "order 1001": [
        {"tool_calls": [{"name": "look_up", "arguments": {"order": 1001}}]},
        {"text": "It was sent yesterday.", "usage": {"input": 40, "output": 7}},
    ],
}
PATHS = {"openai_wire": "/v1/chat/completions", "anthropic_wire": "/v1/messages"}


@pytest.fixture(params=list(PATHS))
def wire(request: pytest.FixtureRequest) -> Wire:
    wire: Wire = request.getfixturevalue(request.param)
    wire.script(CONVERSATIONS)
    return wire


@pytest.fixture
def path(request: pytest.FixtureRequest, wire: Wire) -> str:
    return PATHS[request.node.callspec.params["wire"]]


def body(answers: int = 0, *, stream: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Where is order 1001?"}]
    messages += [{"role": "assistant", "content": "..."}] * answers
    return {"model": "local", "messages": messages, "stream": stream}


def test_a_request_that_is_sent_again_gets_the_same_answer(wire: Wire, path: str) -> None:
    assert wire.post(path, body())["id"] == wire.post(path, body())["id"]
    first, again = (json.dumps(wire.post(path, body())) for _ in range(2))
    assert "look_up" in first
    assert "look_up" in again
    assert [request["turn"] for request in wire.requests()] == [0, 0, 0, 0]


def test_the_turn_is_the_number_of_answers_so_far(wire: Wire, path: str) -> None:
    assert "It was sent yesterday." in json.dumps(wire.post(path, body(1)))


def test_refuses_what_the_script_lacks_as_a_client_error(wire: Wire, path: str) -> None:
    with pytest.raises(Refused, match="400"):
        wire.post(path, body(2))


def test_a_fault_meets_as_many_requests_as_it_says(wire: Wire, path: str) -> None:
    wire.script(CONVERSATIONS, [{"turn": 0, "times": 2, "status": 503}])
    for _ in range(2):
        with pytest.raises(Refused, match="503"):
            wire.post(path, body())
    wire.post(path, body())
    assert [request["fault"] for request in wire.requests()] == [503, 503, None]


def test_a_rate_limit_says_when_to_come_back(wire: Wire, path: str) -> None:
    wire.script(CONVERSATIONS, [{"request": 1, "status": 429, "retry_after": 7}])
    connection = http.client.HTTPConnection(wire.address, timeout=60)
    connection.request("POST", path, json.dumps(body()))
    response = connection.getresponse()
    assert (response.status, response.headers["Retry-After"]) == (429, "7")
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_connection_ends_in_the_middle_of_the_answer(
    stream: bool, wire: Wire, path: str
) -> None:
    wire.script(CONVERSATIONS, [{"request": 1, "cut": True}])
    connection = http.client.HTTPConnection(wire.address, timeout=60)
    connection.request("POST", path, json.dumps(body(1, stream=stream)))
    response = connection.getresponse()
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    connection.close()


def test_streams_the_answer_in_pieces(wire: Wire, path: str) -> None:
    connection = http.client.HTTPConnection(wire.address, timeout=60)
    connection.request("POST", path, json.dumps(body(1, stream=True)))
    events = connection.getresponse().read().decode()
    assert "It was sent " in events
    assert "It was sent yesterday." not in events
    connection.close()
