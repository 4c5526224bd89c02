from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import time_machine
from django.apps import AppConfig
from django.utils import timezone

CLOCK_OFFSET = "TEST_CLOCK_OFFSET"
WORKER_PIDS = "TEST_WORKER_PIDS"
RECORDER_URL = "RECORDER_URL"


class ProjectConfig(AppConfig):
    """Somebody else's Django project, whose workers the tests kill."""

    name = "tests.project"
    label = "project"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_q.signals import post_spawn

        from agentruns.failures import register_classifier

        from .failures import classify

        register_classifier(classify)
        shift_clock()
        # django-q2 sends it in each worker, after the fork, and nowhere else.
        post_spawn.connect(enter_worker, weak=False)


def shift_clock() -> None:
    """Set this process's clock ahead, or behind, by the seconds in TEST_CLOCK_OFFSET."""
    offset = float(os.environ.get(CLOCK_OFFSET) or 0)
    if offset:
        time_machine.travel(timezone.now() + timedelta(seconds=offset), tick=True).start()


def enter_worker(**signal: Any) -> None:
    if os.environ.get(RECORDER_URL):
        from .crash_points import install

        install()
    if os.environ.get(WORKER_PIDS):
        with Path(os.environ[WORKER_PIDS]).open("a", encoding="utf-8") as pids:
            pids.write(f"{os.getpid()}\n")
