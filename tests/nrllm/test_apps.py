from __future__ import annotations

import subprocess
import sys

from django.core.checks import run_checks
from django.test import modify_settings

from tests.harness.environment import subprocess_environment
from tests.servers.process import ROOT

STARTED = """
import sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["agentruns", "nrllm"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from agentruns.failures import classify
from django.core.checks import run_checks
run_checks(tags=["nrllm"])
classify(ValueError())
print("pydantic_ai" in sys.modules)
"""


def test_pydantic_ai_is_not_imported_where_no_agent_is_registered() -> None:
    """It takes a second, and every management command would."""
    said = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=ROOT,
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.strip() == "False"


def test_E003_agents_without_the_app_that_keeps_their_runs() -> None:
    with modify_settings(INSTALLED_APPS={"remove": "agentruns"}):
        (message,) = run_checks(tags=["nrllm"])
    assert message.id == "nrllm.E003"
    assert "Add 'agentruns'" in str(message.hint)


UNINSTALLED = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["agentruns"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
from nrllm import register_agent
from pydantic_ai import Agent
from agentruns import registry
register_agent("early", Agent("test"))
django.setup()
import asyncio
try:
    asyncio.run(registry.get("early").execute(None))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_an_agent_registered_before_the_apps_are_there_does_not_run_without_them() -> None:
    said = subprocess.run(
        [sys.executable, "-c", UNINSTALLED],
        cwd=ROOT,
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.startswith("ImproperlyConfigured add 'nrllm' to INSTALLED_APPS")
