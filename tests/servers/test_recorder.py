from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentruns.testing.client import RecorderClient, Refused
from tests.servers.process import ServerProcess


def test_counts_bodies_by_name(recorder: RecorderClient) -> None:
    recorder.body("write", "key-1")
    recorder.body("read", "key-2")
    assert recorder.count("write") == 1
    assert [(body["key"], body["pid"]) for body in recorder.bodies("read")] == [
        ("key-2", os.getpid())
    ]


def test_nobody_waits_at_a_point_that_is_not_armed(recorder: RecorderClient) -> None:
    assert recorder.hold("in_body:write") is None


def test_an_armed_point_holds_until_it_is_released(recorder: RecorderClient) -> None:
    recorder.arm("in_body:write", answer="unavailable")
    with ThreadPoolExecutor() as threads:
        held = threads.submit(recorder.hold, "in_body:write")
        assert recorder.wait_reached("in_body:write") == os.getpid()
        assert not held.done()
        recorder.release("in_body:write")
        assert held.result(timeout=60) == "unavailable"


def test_lets_the_first_arrivals_pass_and_acts_on_the_next_ones(recorder: RecorderClient) -> None:
    recorder.arm("point", skip=1, times=2, block=False, answer="fail")
    assert [recorder.hold("point") for _ in range(4)] == [None, "fail", "fail", None]


def test_says_that_a_point_was_not_reached(recorder: RecorderClient) -> None:
    recorder.arm("point")
    with pytest.raises(Refused, match="reached 0 times"):
        recorder.wait_reached("point", timeout=0.05)


def test_writes_bodies_down_for_later(tmp_path: object) -> None:
    log = f"{tmp_path}/bodies.jsonl"
    with ServerProcess("agentruns.testing.recorder", "--log", log) as server:
        RecorderClient(server.url).body("write", "key")
    with open(log, encoding="utf-8") as lines:  # noqa: PTH123
        assert '"key": "key"' in lines.read()
