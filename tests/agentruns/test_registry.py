from __future__ import annotations

from typing import Any

import pytest

from agentruns import registry
from agentruns.exceptions import PayloadError, UnknownAgent
from agentruns.registry import RegisteredAgent, register
from agentruns.segment import Segment
from tests.factories import registered


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_agents", {})


def refund(segment: Segment) -> None: ...


def charge(segment: Segment) -> None: ...


def test_a_registered_function_is_found_by_its_name_and_is_still_a_function() -> None:
    assert register("refund", version="2")(refund) is refund
    assert registry.get("refund") == RegisteredAgent("refund", refund, "2")
    assert registry.names() == ("refund",)


def test_an_unknown_name_is_an_error_that_says_what_is_known() -> None:
    register("refund")(refund)
    with pytest.raises(UnknownAgent, match=r"'charge'.*refund"):
        registry.get("charge")


def test_two_functions_can_not_have_one_name() -> None:
    register("refund")(refund)
    with pytest.raises(ValueError, match=r"already, in tests.agentruns.test_registry: refund$"):
        register("refund")(charge)
    assert registry.get("refund").execute is refund


def test_two_local_functions_can_not_have_one_name() -> None:
    def made() -> Any:
        def agent(segment: Segment) -> None: ...

        return agent

    register("refund")(made())
    with pytest.raises(ValueError, match="already"):
        register("refund")(made())


def test_the_same_function_loaded_again_replaces_itself() -> None:
    def loaded_again(segment: Segment) -> None: ...

    loaded_again.__module__, loaded_again.__qualname__ = refund.__module__, refund.__qualname__
    register("refund")(refund)
    register("refund")(loaded_again)
    assert registry.get("refund").execute is loaded_again


@pytest.mark.parametrize("name", ["x" * 201, "\x00"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(PayloadError):
        register(name)(refund)


def test_an_error_survives_the_way_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(UnknownAgent("charge", ("refund",))))
    assert str(error) == str(UnknownAgent("charge", ("refund",)))


def test_the_factory_leaves_nothing_behind() -> None:
    with registered(refund) as name:
        assert name in registry.names()
    assert registry.names() == ()


def test_a_decorator_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@register\('refund'\)"):
        register(refund)  # type: ignore[arg-type]
    assert registry.names() == ()


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="'refund' is to name a function, not str"):
        register("refund")("charge")  # type: ignore[type-var]
