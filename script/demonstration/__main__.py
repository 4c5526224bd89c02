"""The demonstration: three real runs, two killed workers, and what became of them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import django

ROOT = Path(__file__).resolve().parents[2]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """End like any other error, so that every process that was started is ended, too."""
    raise SystemExit(128 + signum)


def make_admin() -> dict[str, str]:
    """Create the user who may open the admin of this demonstration's database."""
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(9)
    get_user_model().objects.create_superuser("demo", password=password)
    python = Path(sys.executable)
    shown = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    return {
        "command": f"{shown} manage.py runserver",
        "worker": f"{shown} manage.py qcluster",
        "url": "http://127.0.0.1:8000/admin/",
        "user": "demo",
        "password": password,
    }


def demonstrate(quiet: bool) -> int:
    from django.core.management import call_command

    from settings.demo import DEMO_DIR

    from .report import TITLES, Report, as_text, check, run_facts
    from .story import tell
    from .world import clean_directory, world

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    began = time.monotonic()
    with clean_directory(DEMO_DIR):
        call_command("migrate", verbosity=0, interactive=False)
        admin = make_admin()
        say("Starting a mail server, a model and a qcluster ...")
        with world(DEMO_DIR) as around:
            runs = tell(around, say)
            emails = around.mail.messages()
        report = Report(
            model=around.model,
            seconds=round(time.monotonic() - began, 1),
            runs=[run_facts(*pair) for pair in zip(TITLES, runs, strict=True)],
            emails=emails,
            checks=check(runs, emails),
            admin=admin,
        )
    print(json.dumps(report.as_dict(), indent=2) if quiet else "\n" + as_text(report), flush=True)
    return 0 if report.ok else 1


def main() -> int:
    options = parse()
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings.demo"
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    django.setup()
    logging.getLogger("django-q").setLevel(logging.WARNING)
    from .world import AlreadyRunning

    try:
        return demonstrate(options.json)
    except AlreadyRunning as refusal:
        print(refusal, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
