from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandParser
from django.db import Error

from ...figures import COUNTED, KINDS, Figure, figures
from ..arguments import length_of_time
from ..command import RunsCommand, said_by_database
from ..rendering import Data, emit, line

# The exit codes that Nagios, Icinga and their plugins agree on.
OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# By which is judged where no limit is given: a check that was told nothing is not to say OK to all.
DEFAULT_LIMITS = {
    "warn_unresolved_age": "5m",
    "max_unresolved_age": "1h",
    "warn_waiting_age": "1d",
    "warn_due_age": "5m",
    "max_due_age": "15m",
    "warn_stale_age": "2m",
    "max_stale_age": "10m",
}


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Command(RunsCommand):
    help = (
        "Say whether something waits for too long, for a monitoring system. Exits with 0 if nothing "
        "does, 1 for a warning, 2 for what is critical, 3 if it could not find out. "
        "Lengths of time: 90, 90s, 15m, 1h, 2d. Without any limit it judges by defaults: "
        + ", ".join(f"{option(name)} {limit}" for name, limit in DEFAULT_LIMITS.items())
        + "; with one, by those that are given."
    )

    failure_code = UNKNOWN
    # What is wrong with the settings is said by other commands; this one says how the runs are.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        for name, kind in KINDS.items():
            for prefix, state in (("warn", "warning"), ("max", "critical")):
                parser.add_argument(
                    f"--{prefix}-{name}-age",
                    type=length_of_time,
                    metavar="TIME",
                    help=f"{kind.about}: {state} if the oldest is older",
                )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            data = health(figures(), limits(options))
        except (Error, ImproperlyConfigured) as error:
            said = said_by_database(error) if isinstance(error, Error) else str(error)
            data = {"state": UNKNOWN, "error": f"{type(error).__name__}: {said}", "figures": []}
        emit(self, options["json"], data | {"state": STATES[data["state"]]}, health_text)
        sys.exit(data["state"])


def limits(options: Data) -> Data:
    """The limits that are given; the default ones where none is."""
    names = [f"{prefix}_{kind}_age" for kind in KINDS for prefix in ("warn", "max")]
    given = {name: options[name] for name in names}
    if any(limit is not None for limit in given.values()):
        return given
    return given | {name: length_of_time(limit) for name, limit in DEFAULT_LIMITS.items()}


def health(found: list[Figure], limits: Data) -> Data:
    judged = [figure_data(figure, limits) for figure in found]
    return {"state": max(figure["state"] for figure in judged), "error": "", "figures": judged}


def figure_data(figure: Figure, limits: Data) -> Data:
    warn, most = (limits[f"{prefix}_{figure.name}_age"] for prefix in ("warn", "max"))
    state = CRITICAL if exceeds(figure, most) else WARNING if exceeds(figure, warn) else OK
    return {
        "name": figure.name,
        "state": state,
        "count": figure.count,
        "more": figure.more,
        "age_seconds": round(figure.age.total_seconds(), 1),
        "oldest": figure.oldest.uuid if figure.oldest else None,
        "warn_age_seconds": None if warn is None else warn.total_seconds(),
        "max_age_seconds": None if most is None else most.total_seconds(),
    }


def exceeds(figure: Figure, limit: timedelta | None) -> bool:
    return limit is not None and figure.count > 0 and figure.age > limit


def health_text(data: Data) -> str:
    """One line of text, then performance data, as the plugins of Nagios write them."""
    if data["error"]:
        return f"{data['state']}: {line(data['error'])}"
    said = ", ".join(figure_text(figure) for figure in data["figures"])
    return f"{data['state']}: {said} | {' '.join(map(performance, data['figures']))}"


def figure_text(figure: Data) -> str:
    if not figure["count"]:
        return f"{figure['name']} 0"
    more = f"more than {COUNTED}" if figure["more"] else figure["count"]
    late = "" if figure["state"] == OK else f", {STATES[figure['state']]}"
    return f"{figure['name']} {more} (oldest {figure['age_seconds']:.0f} s{late})"


def performance(figure: Data) -> str:
    warn, most = (
        "" if figure[name] is None else f"{figure[name]:.0f}"
        for name in ("warn_age_seconds", "max_age_seconds")
    )
    name, age = figure["name"], figure["age_seconds"]
    return f"{name}={figure['count']} {name}_age={age:.0f}s;{warn};{most}"
