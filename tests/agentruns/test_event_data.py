"""docs/api.md: what a receiver of the signal finds in `data`."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from agentruns.api import cancel, decide, move, resolve
from agentruns.enums import Resolution, RunStatus
from agentruns.models import AgentRun, Event
from tests.factories import (
    dead_lettered_write,
    expire,
    fenced,
    queued,
    reap,
    running,
    step_of,
    with_status,
)
from tests.markdown import Page
from tests.servers.process import ROOT

pytestmark = pytest.mark.django_db


def documented() -> dict[str, set[str]]:
    """By kind, the keys that the reference names."""
    rows = [row for row in Page(ROOT / "docs/api.md").rows() if len(row) == 3]
    return {
        kind: set(re.findall(r"`(\w+)`", row[2]))
        for row in rows
        for kind in re.findall(r"`(\w+)`", row[0])
    }


def live() -> None:
    """Have runs do most of what a run's history can have."""
    for status in RunStatus:
        with_status(status)
    lost, _held = running()
    expire(lost)
    reap(lost)
    in_doubt, _step = dead_lettered_write()
    row = AgentRun.objects.get(pk=in_doubt.pk)
    resolve(row.uuid, Resolution.LEFT, by="ada", reason="unknown", digest=row.resolution_digest())
    cancel(fenced()[0].uuid, by="ada")
    move(queued().uuid, "2", by="ada", reason="2 reads what 1 wrote")
    asked = with_status(RunStatus.WAITING_FOR_APPROVAL)
    question = step_of(asked, "question")
    decide(asked.uuid, question.key, False, by="ada", digest=question.digest)


def test_the_keys_are_those_that_the_reference_names() -> None:
    live()
    found: dict[str, set[str]] = defaultdict(set)
    for event in Event.objects.all():
        found[event.kind] |= set(event.details)
    # Of one that is left there is no step.
    found["resolved"].add("step")
    said = documented()
    assert len(found) > 10
    assert found == {kind: said[kind] for kind in found}
