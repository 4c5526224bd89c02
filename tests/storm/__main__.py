"""A storm over hundreds of runs on a private PostgreSQL server; at its end, every run is accounted for.

    python -m tests.storm [--seed N] [--seconds N] [--json]

Workers are killed, stopped and paused at random, whole clusters and reapers killed, connections cut,
PostgreSQL crashed, the broker emptied; operators cancel, answer, resolve and retry. The seed repeats
the choices, not the moments. Exits with 1 if a write was repeated, a run lost or a promise broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import django

from script.postgres import PrivateServer, restartable_server


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the choices of this seed")
    parser.add_argument("--seconds", type=float, default=600, help="how long it rages")
    parser.add_argument(
        "--settle", type=float, default=180, help="after so long without progress, the rest is lost"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


@contextmanager
def database() -> Iterator[PrivateServer]:
    """A server of the storm's own, which this process and all that it starts work on."""
    with restartable_server() as server:
        os.environ["DATABASE_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings.test"
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        yield server


def storm(seed: int, seconds: float, settle: float, server: PrivateServer) -> dict[str, Any]:
    from agentruns.testing.client import RecorderClient
    from tests.servers.process import ServerProcess

    from .account import settle as account_for
    from .deeds import Storm
    from .world import World, persistently

    logging.getLogger("django-q").setLevel(logging.WARNING)
    with (
        tempfile.TemporaryDirectory(prefix="agentruns-storm-") as folder,
        ServerProcess("agentruns.testing.recorder") as recorder,
    ):
        witness = RecorderClient(recorder.url)
        with World(Path(folder), server, witness) as world:
            raging = Storm(world, Random(seed))
            raging.rage(seconds)
            raging.calm_down(settle)
        account = persistently(lambda: account_for(raging.accepted.values(), witness.bodies()))
    return {
        "seed": seed,
        "seconds": seconds,
        "runs": len(raging.accepted),
        "deeds": dict(sorted(raging.done.items())),
        "did": dict(sorted(raging.did.items())),
        **{name: value for name, value in vars(account).items() if name != "outcomes"},
        "outcomes": dict(sorted(account.outcomes.items())),
        "good": account.is_good,
    }


def main() -> int:
    chosen = options()
    seed = Random().getrandbits(32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with database() as server:
        report = storm(seed, chosen.seconds, chosen.settle, server)
        from django.db import connections

        connections.close_all()
    if chosen.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:14} {value}")
    return 0 if report["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
