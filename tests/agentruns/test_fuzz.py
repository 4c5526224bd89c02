"""What a stranger writes, at random: it is kept as it is or refused, and no worker dies of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import given, note
from hypothesis import strategies as st

from agentruns import api, registry
from agentruns.enums import RunStatus, StepKind, StepOutcome, ToolEffect
from agentruns.exceptions import AgentRunError, EffectLanded, EffectNotApplied, PayloadError
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from tests.agentruns.commands.conftest import Commands
from tests.factories import (
    READ,
    REPEATABLE,
    TRANSACTIONAL,
    WRITE,
    execute_again,
    executed,
    reread,
    step_of,
)
from tests.strange import JSON, MOST_BYTES, TEXT, examples, same, strange, values

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

LOST = ConnectionResetError("the other side is away")
SEGMENTS = 5
effects = st.sampled_from(list(ToolEffect))


@pytest.fixture(autouse=True)
def small_payloads(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_PAYLOAD_BYTES": MOST_BYTES}
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))


def look_at(run: AgentRun) -> None:
    """Its row, its history and its journal can be read by those who ask for them."""
    api.status(run.uuid)
    api.events(run.uuid)
    said = Commands()("show_agent_run", str(run.uuid), "--payloads", "--json")
    assert said.failure is None
    assert said.json["uuid"] == str(run.uuid)


def to_the_end(run: AgentRun, agent: Callable[[Segment], Any]) -> AgentRun:
    """Execute it until no machine executes it any more."""
    for _ in range(SEGMENTS):
        if run.status != RunStatus.QUEUED:
            return run
        run = execute_again(run, agent)
    raise AssertionError(f"run {run.uuid} does not end: {run.status}")


def test_what_a_body_returns_is_kept_as_it_is_or_refused(request: pytest.FixtureRequest) -> None:
    @examples(request)
    @given(effects, values)
    def check(effect: ToolEffect, value: Any) -> None:
        bodies: list[str] = []
        seen: list[Any] = []

        def body(key: str) -> Any:
            bodies.append(key)
            return value

        def agent(segment: Segment) -> None:
            seen.append(segment.step("act", body, effect=effect))
            if len(seen) == 1:
                raise LOST

        run = to_the_end(executed(agent), agent)
        look_at(run)
        assert len(bodies) == 1
        assert run.pending_effect == ""
        if run.status == RunStatus.COMPLETED:
            assert len(seen) == 2
            assert all(same(value, kept) for kept in seen)
        else:
            assert seen == []
            landed = effect in (WRITE, REPEATABLE)
            assert run.error_class == ("LandedWithoutResult" if landed else "PayloadError")

    check()


class Shouting(Exception):
    """An error whose text can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=400)
errors = st.one_of(
    st.builds(RuntimeError, values),
    st.builds(ConnectionError, values),
    st.builds(KeyError, values),
    st.builds(OSError, values, values),
    st.builds(EffectNotApplied, values),
    st.builds(EffectLanded, values),
    st.builds(Shouting),
    st.builds(lambda name, value: type(name, (Exception,), {})(value), NAMES, values),
    st.builds(lambda value: ExceptionGroup("many", [RuntimeError(value)]), values),
)


def test_an_error_of_any_name_and_text_ends_in_a_known_state(
    request: pytest.FixtureRequest,
) -> None:
    @examples(request)
    @given(effects, errors)
    def check(effect: ToolEffect, error: Exception) -> None:
        bodies: list[str] = []

        def body(key: str) -> Any:
            bodies.append(key)
            raise error

        def agent(segment: Segment) -> None:
            segment.step("act", body, effect=effect)

        run = to_the_end(executed(agent), agent)
        look_at(run)
        assert run.status == RunStatus.FAILED
        assert len(bodies) == 1 or effect is not WRITE
        certain = isinstance(error, (EffectNotApplied, EffectLanded))
        in_doubt = effect is WRITE and not certain
        assert run.termination_reason == "interrupted_write" or not in_doubt
        assert run.pending_effect == WRITE or not in_doubt
        if certain:
            assert run.pending_effect == ""
            assert len(bodies) == 1 or effect is TRANSACTIONAL

    check()


def test_requests_arguments_and_outputs_are_kept_as_they_are_or_refused(
    request: pytest.FixtureRequest,
) -> None:
    @examples(request)
    @given(effects, values, values, values)
    def check(effect: ToolEffect, asked: Any, arguments: Any, output: Any) -> None:
        bodies: list[str] = []

        def agent(segment: Segment) -> Any:
            assert same(asked, segment.request)
            segment.step("act", bodies.append, effect=effect, arguments=arguments)
            return output

        before = AgentRun.objects.count()
        registry._agents["fuzzed"] = registry.RegisteredAgent("fuzzed", agent)
        try:
            run = AgentRun.objects.get(uuid=api.enqueue("fuzzed", asked).uuid)
        except PayloadError:
            assert AgentRun.objects.count() == before
            return
        run = to_the_end(run, agent)
        look_at(run)
        if not bodies:
            assert run.error_class == "PayloadError"
            return
        stored = step_of(run, "act").arguments
        assert same(arguments, None if stored is None else stored.value)
        assert len(bodies) == 1
        if run.status == RunStatus.COMPLETED:
            assert run.output is not None
            assert same(output, run.output.value)
        else:
            assert (run.error_class, run.pending_effect) == ("PayloadError", "")

    check()


def test_names_are_kept_as_they_are_or_refused(request: pytest.FixtureRequest) -> None:
    names = TEXT | st.text(max_size=300) | strange

    @examples(request)
    @given(names, names, names, names, names)
    def check(agent: Any, correlation: Any, by: Any, step: Any, key: Any) -> None:
        bodies: list[str] = []

        def execute(segment: Segment) -> None:
            segment.step(step, bodies.append, effect=WRITE, key=key)

        try:
            registry.add(registry.RegisteredAgent(agent, execute))
            uuid = api.enqueue(agent, requested_by=by, correlation_id=correlation).uuid
        except (AgentRunError, TypeError) as refusal:
            note(repr(refusal))
            return
        finally:
            kept = {name: one for name, one in registry._agents.items() if name is not agent}
            registry._agents.clear()
            registry._agents.update(kept)
        run = AgentRun.objects.get(uuid=uuid)
        assert (run.agent, run.correlation_id, run.requested_by) == (agent, correlation, by)
        run = to_the_end(run, execute)
        look_at(run)
        if run.status == RunStatus.COMPLETED:
            assert list(Step.objects.filter(run=run).values_list("name", "key")) == [(step, key)]
        assert len(bodies) == (run.status == RunStatus.COMPLETED)

    check()


def test_answers_are_kept_as_they_are_or_refused(request: pytest.FixtureRequest) -> None:
    @examples(request)
    @given(JSON, values)
    def check(question: Any, answer: Any) -> None:
        got: list[Any] = []

        def agent(segment: Segment) -> None:
            got.append(segment.wait_for_input("ask", question))

        run = executed(agent)
        look_at(run)
        if run.status == RunStatus.FAILED:
            assert run.error_class == "PayloadError"
            return
        registry._agents[run.agent] = registry.RegisteredAgent(run.agent, agent)
        try:
            api.submit_input(run.uuid, "ask", answer, by="ann")
        except PayloadError:
            assert reread(run).status == RunStatus.WAITING_FOR_INPUT
            return
        run = to_the_end(reread(run), agent)
        look_at(run)
        assert run.status == RunStatus.COMPLETED
        assert same(answer, got[0])

    check()


# A journal that somebody has damaged by hand.

JUNK = st.one_of(
    st.sampled_from(["", "1:", "9:null", "1:null", "1:{}", '1:"x"', "1:1e999", "1:[", "-1"]),
    st.sampled_from([*StepKind.values, *StepOutcome.values, *ToolEffect.values]),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=16),
    st.binary(max_size=8).map(lambda raw: raw.decode("latin-1").replace("\x00", "")),
)
# What is no state, too; but 'not applied' is a person's word for: execute it again.
STATES = st.sampled_from(["recorded", "started", "uncertain", "", "nonsense"])
COLUMNS = ["arguments", "digest", "result", "key", "name", "kind", "state", "outcome", "effect"]


def damage(run: AgentRun, key: str, column: str, junk: str) -> bool:
    """Write it into a recorded step, as far as the constraints let it; whether they did."""
    columns = {column: junk}
    if column == "key":
        columns["recorded_key"] = junk
    sets = ", ".join(f"{connection.ops.quote_name(name)} = %s" for name in columns)
    if column == "state" and junk != "recorded":
        sets += ", recorded_key = NULL"
    quoted = connection.ops.quote_name("key")
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE agentruns_step SET {sets} WHERE run_id = %s AND {quoted} = %s",
                [*columns.values(), run.pk, key],
            )
    except (IntegrityError, DataError):
        return False
    return True


def noting(bodies: list[str], name: str) -> Callable[[str], None]:
    return lambda key: bodies.append(name)


def test_a_damaged_journal_repeats_no_write_and_leads_to_no_other(
    request: pytest.FixtureRequest,
) -> None:
    keys = {"read": READ, "put": REPEATABLE, "send": WRITE, "save": TRANSACTIONAL}

    @examples(request)
    @given(
        st.lists(
            st.tuples(st.sampled_from(sorted(keys)), st.sampled_from(COLUMNS), JUNK),
            min_size=1,
            max_size=3,
            unique_by=lambda damaged: damaged[0],
        ),
        STATES,
    )
    def check(damages: list[tuple[str, str, str]], state: str) -> None:
        bodies: list[str] = []
        segments: list[Segment] = []

        def agent(segment: Segment) -> None:
            segments.append(segment)
            for key, effect in keys.items():
                try:
                    segment.step(key, noting(bodies, key), effect=effect, arguments=[key])
                except Exception:
                    segment.step("instead", noting(bodies, "instead"), effect=WRITE)
            if len(segments) == 1:
                raise LOST

        run = executed(agent)
        assert bodies == list(keys)
        for key, column, junk in damages:
            damage(run, key, column, state if column == "state" else junk)
        run = to_the_end(run, agent)
        look_at(run)
        assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        assert bodies.count("send") == 1
        assert bodies.count("instead") == 0

    check()


@pytest.mark.parametrize(
    ("column", "junk"), [("state", "nonsense"), ("outcome", "nonsense"), ("outcome", "raised")]
)
def test_a_state_or_an_end_that_nobody_writes_is_no_leave_to_act(column: str, junk: str) -> None:
    bodies: list[str] = []

    def agent(segment: Segment) -> None:
        try:
            segment.step("send", bodies.append, effect=WRITE)
        except Exception:
            segment.step("instead", bodies.append, effect=WRITE)
        raise LOST

    run = executed(agent)
    damage(run, "send", column, junk)
    run = execute_again(run, agent)
    assert (run.status, run.error_class) == (RunStatus.FAILED, "JournalMismatch")
    assert len(bodies) == 1
