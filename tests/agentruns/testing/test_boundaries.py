from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentruns.testing.boundaries import Arrival, Point, watched
from agentruns.testing.settling import run_until_settled
from tests import factories
from tests.servers.process import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

WRITE = [
    "before_stamp",
    "in_stamp",
    "after_stamp",
    "in_body",
    "before_record",
    "in_record",
    "after_record",
]
READ = WRITE[3:]
WHOLE = ["claimed", *READ, *WRITE, *READ, "before_complete", "in_complete", "after_complete"]


def points(agent: str) -> list[str]:
    seen: list[Arrival] = []
    run = factories.queued(agent, {})
    with watched(seen.append):
        run_until_settled(run.uuid)
    assert {arrival.run for arrival in seen} == {run.uuid}
    return [str(arrival.point) for arrival in seen]


@pytest.mark.parametrize("agent", ["one_write", "async_write", "repeatable_write"])
def test_a_run_comes_to_every_boundary_in_this_order(agent: str) -> None:
    assert points(agent) == WHOLE


def test_a_transactional_write_has_no_stamp() -> None:
    assert points("transactional_write") == [*WHOLE[:5], *READ, *READ, *WHOLE[-3:]]


def test_nothing_is_watched_outside_the_block() -> None:
    seen: list[Arrival] = []
    with watched(seen.append):
        pass
    run_until_settled(factories.queued("one_write", {}).uuid)
    assert seen == []


def test_what_a_boundary_raises_comes_out_of_it() -> None:
    def reached(arrival: Arrival) -> None:
        if arrival.point is Point.IN_STAMP:
            raise RuntimeError("here")

    run = factories.queued("one_write", {})
    with watched(reached):
        run_until_settled(run.uuid)
    assert "fence could not be stamped" in factories.reread(run).error_message


def test_the_product_does_not_know_of_the_kit_whatever_the_environment_says() -> None:
    """A worker loads no module of it, and so has nothing that a variable could switch on."""
    code = (
        "import sys, django; django.setup(); import agentruns.tasks, agentruns.admin, nrllm.runner;"
        "print([name for name in sys.modules if name.startswith('agentruns.testing')])"
    )
    names = [f"AGENTRUNS_{point.name}" for point in Point] + ["AGENTRUNS_CRASH", "CRASH_POINTS"]
    environment = {
        **os.environ,
        **dict.fromkeys(names, "1"),
        "DJANGO_SETTINGS_MODULE": "settings.base",
        "SECRET_KEY": "x",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
