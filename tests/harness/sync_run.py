"""Run an agent synchronously in this process, and print the outcome as one JSON line."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import django


def outcome_of(agent: str, request: Any) -> dict[str, Any]:
    from agentruns.api import run

    try:
        returned = run(agent, request)
    except BaseException as error:
        return {"outcome": type(error).__name__, **facts(error), "message": str(error)}
    return {"outcome": type(returned).__name__, **facts(returned)}


def facts(value: Any) -> dict[str, Any]:
    names = ("uuid", "output", "status", "reason")
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return found | {"uuid": str(found["uuid"])} if "uuid" in found else found


def main(agent: str, request: str) -> None:
    django.setup()
    if os.environ.get("RECORDER_URL"):
        from tests.project.crash_points import install

        install()
    print(json.dumps(outcome_of(agent, json.loads(request))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
