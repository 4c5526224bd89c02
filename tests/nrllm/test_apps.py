from __future__ import annotations

import subprocess
import sys

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
