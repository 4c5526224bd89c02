"""Make the pictures of the operator's documentation."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import django

from script.postgres import free_port

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120


@contextmanager
def server() -> Iterator[str]:
    """Django's own server over the temporary database, until the block ends; its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        try:
            wait_for(url, child)
            yield url
        finally:
            child.terminate()


def wait_for(url: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urlopen(f"{url}/admin/login/", timeout=START_SECONDS):  # noqa: S310
                return
        except OSError:  # URLError is one; what goes wrong after the connection is others
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit("The server did not start.")
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/screenshots", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="agentruns-pictures-") as folder:
        os.environ["AGENTRUNS_DEMO_DIR"] = folder
        os.environ["DJANGO_SETTINGS_MODULE"] = "script.pictures.settings"
        django.setup()
        for file in make(options.into, options.scheme):
            print(f"{file.stat().st_size / 1024:6.0f} KiB  {file}")
    return 0


def make(folder: Path, scheme: str) -> list[Path]:
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.db import connection

    from .browser import chromium, log_in, take_answer, take_pictures
    from .world import make_runs

    call_command("migrate", verbosity=0, interactive=False)
    password = secrets.token_urlsafe(9)
    get_user_model().objects.create_superuser("ada", password=password)
    shown = make_runs()
    connection.close()
    with server() as url, chromium() as browser:
        page = log_in(browser, url, "ada", password, scheme)
        return [*take_pictures(page, folder, shown.pk), take_answer(page, folder)]


if __name__ == "__main__":
    sys.exit(main())
