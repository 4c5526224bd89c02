from __future__ import annotations

from typing import Any

import pytest

from agentruns.conf import Conf, conf


def test_every_setting_has_a_default(settings: Any) -> None:
    settings.AGENTRUNS = {}
    assert {name: getattr(conf, name) for name in Conf.names()} == {
        name: vars(Conf)[name].default for name in Conf.names()
    }


def test_works_without_any_settings_of_the_project(settings: Any) -> None:
    del settings.AGENTRUNS
    assert conf.LEASE_SECONDS == 60.0


def test_reads_at_each_access(settings: Any) -> None:
    settings.AGENTRUNS = {"LEASE_SECONDS": 1}
    assert conf.LEASE_SECONDS == 1
    settings.AGENTRUNS = {"LEASE_SECONDS": 2}
    assert conf.LEASE_SECONDS == 2


def test_a_heartbeat_is_a_third_of_the_lease_or_less_by_default(settings: Any) -> None:
    settings.AGENTRUNS = {}
    assert conf.HEARTBEAT_SECONDS <= conf.LEASE_SECONDS / 3


@pytest.mark.parametrize("name", Conf.names())
def test_names_its_unit(name: str) -> None:
    value = vars(Conf)[name].default
    if isinstance(value, float):
        assert name.endswith("_SECONDS")
