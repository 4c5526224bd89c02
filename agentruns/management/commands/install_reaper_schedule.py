from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ...tasks import REAP
from ..arguments import positive_int
from ..rendering import Data, emit

NAME = "agentruns: reap stale runs"


class Command(BaseCommand):
    help = (
        "Have the django-q2 cluster reap stale runs every minute. Running it again changes nothing. "
        "A reaper that does not depend on the workers that it watches is better: "
        "reap_stale_agent_runs --every 30 as a process of its own, or from cron."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--minutes", type=positive_int, default=1)
        parser.add_argument("--remove", action="store_true", help="remove the schedule")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        if not apps.is_installed("django_q"):
            raise CommandError("django_q is not in INSTALLED_APPS")
        if options["remove"]:
            data = {"name": NAME, "removed": remove()}
        else:
            data = {"name": NAME, "minutes": options["minutes"], "did": install(options["minutes"])}
        emit(self, options["json"], data, outcome_text)


def schedules() -> QuerySet[Any]:
    """The reaper's schedules: one, unless two hosts installed it at the same moment."""
    model: Any = apps.get_model("django_q", "Schedule")
    named: QuerySet[Any] = model.objects.filter(name=NAME).order_by("pk")
    return named


def install(minutes: int) -> str:
    """Make the schedule what it is to be; one that is so already keeps its next run."""
    model = schedules().model
    wanted = {
        "func": REAP,
        "schedule_type": model.MINUTES,
        "minutes": minutes,
        "repeats": -1,
        # What it did is in the runs' histories; only a failure is kept.
        "kwargs": "q_options={'save': False}",
    }
    with transaction.atomic(using=router.db_for_write(model)):
        found = list(schedules().select_for_update())
        if not found:
            schedules().create(name=NAME, **wanted)
            return "created"
        schedules().exclude(pk=found[0].pk).delete()
        if all(getattr(found[0], name) == value for name, value in wanted.items()):
            return "unchanged"
        schedules().update(next_run=timezone.now(), **wanted)
        return "changed"


def remove() -> bool:
    deleted, _by_model = schedules().delete()
    return bool(deleted)


def outcome_text(data: Data) -> str:
    if "removed" in data:
        return f"{NAME}: {'removed' if data['removed'] else 'there was none'}"
    return f"{NAME}: {data['did']}, every {data['minutes']} min"
